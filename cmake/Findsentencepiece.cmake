# Defines sentencepiece::sentencepiece, which Debian ships without a CMake package.
find_path(sentencepiece_INCLUDE_DIR sentencepiece_processor.h)
find_library(sentencepiece_LIBRARY sentencepiece)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(sentencepiece REQUIRED_VARS sentencepiece_LIBRARY sentencepiece_INCLUDE_DIR)
if(sentencepiece_FOUND AND NOT TARGET sentencepiece::sentencepiece)
  add_library(sentencepiece::sentencepiece UNKNOWN IMPORTED)
  set_target_properties(sentencepiece::sentencepiece PROPERTIES
    IMPORTED_LOCATION ${sentencepiece_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${sentencepiece_INCLUDE_DIR})
endif()
mark_as_advanced(sentencepiece_INCLUDE_DIR sentencepiece_LIBRARY)
