# The core in a project that takes the checkout in, without torch. As it is by default: configured alone. With shared
# libraries and rules to install: built without optimisation and installed in WORK; then a second project is built on
# what was installed, and both programs run.
file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/consumer)
set(common -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release
  "-DCMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" -DCMAKE_CXX_FLAGS=${FLAGS} -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER})
set(taken_in -S ${CONSUMER} ${common} -DCOMPONENT=subdirectory -DSOURCE=${SOURCE})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} ${taken_in} -B ${WORK}/defaults)
run(${CMAKE_COMMAND} ${taken_in} -B ${WORK}/build -DBUILD_SHARED_LIBS=ON -DEPISODIC_INSTALL=ON)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${CONSUMER} -B ${WORK}/consumer ${common} -DCOMPONENT=core -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
foreach(program build/consumer_subdirectory consumer/consumer_core)
  string(REGEX REPLACE ".*_" "" component ${program})
  run(${PYTHON} ${SOURCE}/tests/install/check_program.py ${WORK}/${program} ${component})
  execute_process(COMMAND ldd ${WORK}/${program} OUTPUT_VARIABLE libraries COMMAND_ERROR_IS_FATAL ANY)
  if(NOT libraries MATCHES "libepisodic_core")
    message(FATAL_ERROR "${program} does not load libepisodic_core: ${libraries}")
  endif()
endforeach()
