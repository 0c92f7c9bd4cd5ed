# The kernels by themselves: configured, built and installed with nvcc alone in WORK, for one architecture, then
# their example as a consumer of that.
file(REMOVE_RECURSE ${WORK}/prefix ${WORK}/consumer)
set(common -G ${GENERATOR} -DCMAKE_CXX_COMPILER=${COMPILER} -DCMAKE_BUILD_TYPE=Release
  -DCMAKE_CXX_COMPILER_LAUNCHER=${LAUNCHER} -DCUDAToolkit_ROOT=${TOOLKIT})
function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()
run(${CMAKE_COMMAND} -S ${SOURCE}/kernels -B ${WORK}/build ${common} -DCMAKE_CUDA_COMPILER=${NVCC}
  -DCMAKE_CUDA_COMPILER_LAUNCHER=${LAUNCHER} -DEPISODIC_CUDA_ARCHITECTURES=90-virtual)
run(${CMAKE_COMMAND} --build ${WORK}/build)
run(${CMAKE_COMMAND} --install ${WORK}/build --prefix ${WORK}/prefix)
run(${CMAKE_COMMAND} -S ${SOURCE}/examples/kernels -B ${WORK}/consumer ${common} -DCMAKE_PREFIX_PATH=${WORK}/prefix)
run(${CMAKE_COMMAND} --build ${WORK}/consumer)
run(${PYTHON} ${SOURCE}/tests/install/check_program.py ${WORK}/consumer/example_segmented_attention kernels)
