# Makes the Debian package of a build tree whose programs are there, unpacks it, and runs what is in it
# without anything of the checkout: cmake -DBUILD= -DWORK= -DSOURCE= -P package.cmake
find_program(DPKG_DEB dpkg-deb)
if(NOT DPKG_DEB)
  message("EPISODIC_SKIP: no dpkg-deb")
  return()
endif()
file(REMOVE_RECURSE ${WORK})
file(MAKE_DIRECTORY ${WORK})
execute_process(COMMAND cpack -G DEB --config ${BUILD}/CPackConfig.cmake -B ${WORK}
  COMMAND_ERROR_IS_FATAL ANY)
file(GLOB package ${WORK}/*.deb)
execute_process(COMMAND ${DPKG_DEB} --info ${package} COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${DPKG_DEB} -x ${package} ${WORK}/root COMMAND_ERROR_IS_FATAL ANY)
set(program ${WORK}/root/usr/bin/episodic)
execute_process(COMMAND env -i ${program} --version OUTPUT_VARIABLE version COMMAND_ERROR_IS_FATAL ANY)
if(NOT version MATCHES "^episodic [0-9]")
  message(FATAL_ERROR "the program says: ${version}")
endif()
execute_process(COMMAND env -i ${program} generate --quiet --max-new 8 --prompt "The old man said"
  --model ${WORK}/root/usr/share/episodic/models/recall-2m6
  OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
message("it says:${text}")
string(LENGTH "${text}" length)
if(length LESS 4)
  message(FATAL_ERROR "no text came")
endif()
