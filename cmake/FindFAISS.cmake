# Defines FAISS::FAISS, with the BLAS and LAPACK that a static one needs. Debian's own package config
# names gcc's libgomp by path, which CMake then warns about beside torch's.
find_path(FAISS_INCLUDE_DIR faiss/Index.h)
find_library(FAISS_LIBRARY faiss)
set(FAISS_REQUIRED FAISS_LIBRARY FAISS_INCLUDE_DIR)
if(FAISS_LIBRARY MATCHES "[.]a$")
  find_library(FAISS_LAPACK_LIBRARY NAMES lapack openblas)
  find_library(FAISS_BLAS_LIBRARY NAMES blas openblas)
  list(APPEND FAISS_REQUIRED FAISS_LAPACK_LIBRARY FAISS_BLAS_LIBRARY)
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(FAISS REQUIRED_VARS ${FAISS_REQUIRED})
if(FAISS_FOUND AND NOT TARGET FAISS::FAISS)
  add_library(FAISS::FAISS UNKNOWN IMPORTED)
  set_target_properties(FAISS::FAISS PROPERTIES
    IMPORTED_LOCATION ${FAISS_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${FAISS_INCLUDE_DIR})
  if(FAISS_LIBRARY MATCHES "[.]a$")
    set_target_properties(FAISS::FAISS PROPERTIES
      INTERFACE_LINK_LIBRARIES "${FAISS_LAPACK_LIBRARY};${FAISS_BLAS_LIBRARY}")
  endif()
endif()
mark_as_advanced(FAISS_INCLUDE_DIR FAISS_LIBRARY FAISS_LAPACK_LIBRARY FAISS_BLAS_LIBRARY)
