# Defines episodic_torch::torch: the CPU libraries of a libtorch package (libtorch_cpu, libc10); and
# where it is a whole CUDA build episodic_torch::cuda, which loads its CUDA into a program.
# Own imported targets instead of find_package(Torch), which fails without a CUDA toolkit and in the
# small CPU installation. Used by the build and, installed beside the package's config, by consumers.
# Without a libtorch it defines no target and EPISODIC_TORCH_NOT_FOUND_MESSAGE, which says where it looked.
#
# Looks in: EPISODIC_TORCH_ROOT (variable, then environment), EPISODIC_TORCH_HINTS, python3's torch.
if(TARGET episodic_torch::torch)
  return()
endif()

function(_episodic_find_torch result)
  set(candidates "${EPISODIC_TORCH_ROOT}" "$ENV{EPISODIC_TORCH_ROOT}")
  # a folder that was asked for is not quietly replaced by another one
  list(REMOVE_ITEM candidates "")
  if(NOT candidates)
    set(candidates ${EPISODIC_TORCH_HINTS})
    # what scripts/setup recorded in the checkout
    set(record ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../.cache/torch_root)
    if(EXISTS ${record})
      file(STRINGS ${record} recorded LIMIT_COUNT 1)
      list(APPEND candidates "${recorded}")
    endif()
  endif()
  foreach(candidate IN LISTS candidates)
    if(EXISTS "${candidate}/lib/libtorch_cpu.so")
      set(${result} "${candidate}" PARENT_SCOPE)
      return()
    endif()
  endforeach()
  if(NOT EPISODIC_TORCH_ROOT)
    find_package(Python3 COMPONENTS Interpreter QUIET)
    if(Python3_EXECUTABLE)
      # no `import torch`: it would load all of CUDA, and fails in the small installation
      execute_process(COMMAND ${Python3_EXECUTABLE} -c
        "import importlib.util as u, os; s = u.find_spec('torch'); print(os.path.dirname(s.origin) if s else '')"
        OUTPUT_VARIABLE candidate OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
      if(candidate AND EXISTS "${candidate}/lib/libtorch_cpu.so")
        set(${result} "${candidate}" PARENT_SCOPE)
        return()
      endif()
      list(APPEND candidates "python3's torch (none)")
    endif()
  endif()
  list(JOIN candidates ", " looked)
  set(EPISODIC_TORCH_NOT_FOUND_MESSAGE "no libtorch; looked in: ${looked}. Set EPISODIC_TORCH_ROOT to the folder \
of a torch package (with lib/libtorch_cpu.so), or run scripts/setup." PARENT_SCOPE)
  set(${result} "" PARENT_SCOPE)
endfunction()

_episodic_find_torch(_episodic_torch)
if(NOT _episodic_torch)
  return()
endif()
foreach(_episodic_lib c10 torch_cpu)
  add_library(episodic_torch::${_episodic_lib} SHARED IMPORTED GLOBAL)
  set_target_properties(episodic_torch::${_episodic_lib} PROPERTIES
    IMPORTED_LOCATION ${_episodic_torch}/lib/lib${_episodic_lib}.so)
endforeach()
set(_episodic_includes ${_episodic_torch}/include ${_episodic_torch}/include/torch/csrc/api/include)
add_library(episodic_torch::torch INTERFACE IMPORTED GLOBAL)
set_target_properties(episodic_torch::torch PROPERTIES
  INTERFACE_INCLUDE_DIRECTORIES "${_episodic_includes}"
  INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${_episodic_includes}"
  INTERFACE_LINK_LIBRARIES "episodic_torch::torch_cpu;episodic_torch::c10")
if(EXISTS ${_episodic_torch}/lib/libtorch_cuda.so)
  # Not where it cannot be loaded: the small installation has it, without what it needs.
  execute_process(COMMAND ldd ${_episodic_torch}/lib/libtorch_cuda.so
    OUTPUT_VARIABLE _episodic_needs ERROR_QUIET)
  if(NOT _episodic_needs MATCHES "not found")
    # It registers itself with libtorch_cpu when it is loaded. Nothing in it is called by name, so a
    # linker that drops what is not needed must be told to keep it.
    add_library(episodic_torch::cuda INTERFACE IMPORTED GLOBAL)
    set_target_properties(episodic_torch::cuda PROPERTIES INTERFACE_LINK_LIBRARIES
      "-Wl,--push-state,--no-as-needed,${_episodic_torch}/lib/libtorch_cuda.so,--pop-state;episodic_torch::torch")
  endif()
  unset(_episodic_needs)
endif()
set(EPISODIC_TORCH_FOUND_ROOT "${_episodic_torch}")
unset(_episodic_torch)
unset(_episodic_includes)
unset(_episodic_lib)
