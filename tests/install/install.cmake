# Installs the build tree BUILD into an empty PREFIX, and its headers alone into an empty PREFIX_headers.
file(REMOVE_RECURSE ${PREFIX} ${PREFIX}_headers)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX}_headers --component headers
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE compiled ${PREFIX}_headers/*.a ${PREFIX}_headers/*.so*)
if(compiled)
  message(FATAL_ERROR "the component of the headers brings ${compiled}")
endif()
# Every file belongs to a component: the components together are the whole.
file(GLOB_RECURSE whole LIST_DIRECTORIES FALSE RELATIVE ${PREFIX} ${PREFIX}/*)
foreach(component core episodic server mpi redis c torch device device_torch kernels programs)
  execute_process(COMMAND ${CMAKE_COMMAND} --install ${BUILD} --prefix ${PREFIX}_parts --component ${component}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
endforeach()
foreach(file IN LISTS whole)
  if(NOT EXISTS ${PREFIX}_headers/${file} AND NOT EXISTS ${PREFIX}_parts/${file})
    message(FATAL_ERROR "no component has ${file}")
  endif()
endforeach()
file(REMOVE_RECURSE ${PREFIX}_parts)
