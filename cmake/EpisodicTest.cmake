# episodic_test(NAME [ENGINE] [TORCH] [CUDA] [EVERY_CPU] [LABELS label...] SOURCES file...): one Catch2 executable.
#
# Every test case becomes a ctest test "NAME: case", labelled with NAME and LABELS; a case tagged
# [heavy] has the label heavy too, and runs alone; one tagged [long] has the label long, which scripts/test
# leaves out without --all. A case that calls EPISODIC_SKIP is reported as skipped. ENGINE links
# episodic::episodic, TORCH episodic::torch (and there is no such test in a build without it), otherwise
# episodic::core; CUDA adds episodic::kernels.
# EVERY_CPU: one test more for each instruction set below the best, with its loops all cases but heavy and long
# ones and those tagged [device], which compute on a device: they are long, but for the room cpu.
find_package(Catch2 REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# Catch2's own part of every test program, compiled once: of 2.x it takes longer than most tests.
add_library(episodic_test_main STATIC EXCLUDE_FROM_ALL ${PROJECT_SOURCE_DIR}/tests/support/main.cpp)
target_compile_features(episodic_test_main PRIVATE cxx_std_20)
target_link_libraries(episodic_test_main PUBLIC Catch2::Catch2)

# How every source of a test is compiled: also of one that several programs link.
function(episodic_test_settings target)
  episodic_warnings(${target})
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  target_link_libraries(${target} PRIVATE nlohmann_json::nlohmann_json episodic_test_main)
  target_compile_definitions(${target} PRIVATE
    EPISODIC_SOURCE_DIR="${PROJECT_SOURCE_DIR}" EPISODIC_BINARY_DIR="${PROJECT_BINARY_DIR}")
  if(EPISODIC_UNITY)  # as in src; headers are four of the five seconds of a short test
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
    target_compile_options(${target} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
  endif()
endfunction()

function(episodic_test name)
  cmake_parse_arguments(ARG "ENGINE;TORCH;CUDA;EVERY_CPU" "" "SOURCES;LABELS" ${ARGN})
  if(ARG_TORCH AND NOT EPISODIC_TORCH)
    return()
  endif()
  set(target test_${name})
  add_executable(${target} ${ARG_SOURCES})
  if(ARG_TORCH)
    target_link_libraries(${target} PRIVATE episodic::torch fmt::fmt-header-only)
    target_compile_definitions(${target} PRIVATE EPISODIC_TEST_TORCH=1)
  elseif(ARG_ENGINE)
    target_link_libraries(${target} PRIVATE episodic::episodic fmt::fmt)
  else()
    target_link_libraries(${target} PRIVATE episodic::core fmt::fmt)
  endif()
  if(ARG_CUDA)
    target_link_libraries(${target} PRIVATE episodic::kernels)
  endif()
  episodic_test_settings(${target})

  # Catch's own discovery cannot give a test two labels, and trips over "[a, b)" in a name.
  set(list ${CMAKE_CURRENT_BINARY_DIR}/${target}_list.cmake)
  set(discover ${PROJECT_SOURCE_DIR}/tests/support/discover.py)
  add_custom_command(TARGET ${target} POST_BUILD BYPRODUCTS ${list}
    COMMAND ${Python3_EXECUTABLE} ${discover} $<TARGET_FILE:${target}> ${name} ${list} ${ARG_LABELS}
    VERBATIM)
  set_property(TARGET ${target} APPEND PROPERTY LINK_DEPENDS ${discover})
  # not built: a test that cannot be run, and so fails
  file(CONFIGURE OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake @ONLY CONTENT [[
if(EXISTS "@list@")
  include("@list@")
else()
  add_test("@name@: not built" "@target@_not_built")
endif()
]])
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES
    ${CMAKE_CURRENT_BINARY_DIR}/${target}_include.cmake)

  if(ARG_EVERY_CPU)
    foreach(set avx2 portable)
      set(test "${name}: everything with the loops for ${set}")
      add_test(NAME "${test}" COMMAND ${target} "~[heavy]~[long]~[device]")
      set(of_set "${name}")
      if(NOT name STREQUAL "cpu")  # every run has the room of the loops
        list(APPEND of_set long)
      endif()
      set_tests_properties("${test}" PROPERTIES ENVIRONMENT EPISODIC_CPU=${set} LABELS "${of_set}")
    endforeach()
  endif()
endfunction()
