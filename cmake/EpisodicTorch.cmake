# Defines episodic_torch::torch: the CPU libraries of a libtorch package (libtorch_cpu, libc10).
# Own imported targets instead of find_package(Torch), which fails without a CUDA toolkit.
if(TARGET episodic_torch::torch)
  return()
endif()
if(NOT EPISODIC_TORCH_ROOT)
  find_package(Python3 COMPONENTS Interpreter REQUIRED)
  # no `import torch`: it would load all of CUDA, and fails in the small install
  execute_process(COMMAND ${Python3_EXECUTABLE} -c
    "import importlib.util as u,os;s=u.find_spec('torch');print(os.path.dirname(s.origin) if s else '')"
    OUTPUT_VARIABLE EPISODIC_TORCH_ROOT OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT EXISTS "${EPISODIC_TORCH_ROOT}/lib/libtorch_cpu.so")
  message(FATAL_ERROR "episodic: no libtorch in '${EPISODIC_TORCH_ROOT}'. Set EPISODIC_TORCH_ROOT to "
    "the folder of a torch package (with lib/libtorch_cpu.so), or run scripts/setup.")
endif()
foreach(lib c10 torch_cpu)
  add_library(episodic_torch::${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(episodic_torch::${lib} PROPERTIES
    IMPORTED_LOCATION ${EPISODIC_TORCH_ROOT}/lib/lib${lib}.so)
endforeach()
add_library(episodic_torch::torch INTERFACE IMPORTED GLOBAL)
set_target_properties(episodic_torch::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES
    "${EPISODIC_TORCH_ROOT}/include;${EPISODIC_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES
    "${EPISODIC_TORCH_ROOT}/include;${EPISODIC_TORCH_ROOT}/include/torch/csrc/api/include"
  INTERFACE_LINK_LIBRARIES "episodic_torch::torch_cpu;episodic_torch::c10")
