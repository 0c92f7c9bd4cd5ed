# The core as a shared library: configures, builds and installs it in WORK, then builds and runs the
# consumer on it.
file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/consumer)
set(common -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=${BUILD_TYPE}
  -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} -S ${SOURCE} -B ${WORK}/build ${common} -DBUILD_SHARED_LIBS=ON -DEPISODIC_TORCH=OFF
  -DEPISODIC_INSTALL=ON)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/consumer ${common} -DCOMPONENT=core -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${WORK}/consumer/consumer_core)
execute_process(COMMAND ldd ${WORK}/consumer/consumer_core OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
if(NOT libraries MATCHES "libepisodic_core")
  message(FATAL_ERROR "the consumer does not load libepisodic_core: ${libraries}")
endif()
