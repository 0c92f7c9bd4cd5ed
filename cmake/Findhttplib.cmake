# Defines httplib::httplib (cpp-httplib), which Debian ships without a CMake package: compiled, with the
# definitions that it was compiled with. Elsewhere it is one header.
find_path(httplib_INCLUDE_DIR httplib.h)
find_library(httplib_LIBRARY cpp-httplib)
if(httplib_INCLUDE_DIR)
  file(STRINGS ${httplib_INCLUDE_DIR}/httplib.h httplib_VERSION REGEX "^#define CPPHTTPLIB_VERSION " LIMIT_COUNT 1)
  string(REGEX REPLACE ".*\"([0-9.]+)\".*" "\\1" httplib_VERSION "${httplib_VERSION}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(httplib REQUIRED_VARS httplib_INCLUDE_DIR VERSION_VAR httplib_VERSION
  HANDLE_VERSION_RANGE)
if(httplib_FOUND AND NOT TARGET httplib::httplib)
  add_library(httplib::httplib INTERFACE IMPORTED)
  set_target_properties(httplib::httplib PROPERTIES INTERFACE_INCLUDE_DIRECTORIES ${httplib_INCLUDE_DIR})
  if(httplib_LIBRARY)
    find_package(PkgConfig QUIET)
    if(PKG_CONFIG_FOUND)
      pkg_check_modules(PC_httplib QUIET cpp-httplib)
    endif()
    set_target_properties(httplib::httplib PROPERTIES
      INTERFACE_LINK_LIBRARIES ${httplib_LIBRARY} INTERFACE_COMPILE_OPTIONS "${PC_httplib_CFLAGS_OTHER}")
  endif()
endif()
mark_as_advanced(httplib_INCLUDE_DIR httplib_LIBRARY)
