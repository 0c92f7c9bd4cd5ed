# episodic_kernels_prefix(FOLDER): makes <episodic_kernels/x.hpp> findable in FOLDER, as where the package is
# installed. Also read by tests/emulator.
set(episodic_kernels_source ${CMAKE_CURRENT_LIST_DIR})
function(episodic_kernels_prefix folder)
  file(MAKE_DIRECTORY ${folder})
  file(CREATE_LINK ${episodic_kernels_source} ${folder}/episodic_kernels SYMBOLIC)
endfunction()
