# Configures the project SOURCE against the package in PREFIX: must succeed, without a word of warning.
file(REMOVE_RECURSE ${BINARY})
execute_process(COMMAND ${CMAKE_COMMAND} -G ${GENERATOR} -S ${SOURCE} -B ${BINARY} -DCMAKE_PREFIX_PATH=${PREFIX}
  -DCMAKE_CXX_COMPILER=${COMPILER} ${MORE}
  OUTPUT_VARIABLE said ERROR_VARIABLE said RESULT_VARIABLE status)
message("${said}")
if(NOT status EQUAL 0)
  message(FATAL_ERROR "the configuration failed")
endif()
if(said MATCHES "[Ww]arning")
  message(FATAL_ERROR "the configuration warns")
endif()
