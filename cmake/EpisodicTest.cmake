# episodic_test(NAME [TORCH] [LABELS label...] SOURCES file...): one Catch2 executable of a room.
# Every test case becomes a ctest test, labelled with the room and LABELS.
include(Catch)
function(episodic_test name)
  cmake_parse_arguments(ARG "TORCH" "" "SOURCES;LABELS" ${ARGN})
  add_executable(test_${name} ${ARG_SOURCES} ${PROJECT_SOURCE_DIR}/tests/support/main.cpp)
  target_include_directories(test_${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests)
  if(ARG_TORCH)
    target_link_libraries(test_${name} PRIVATE episodic::episodic)
    target_compile_definitions(test_${name} PRIVATE EPISODIC_TEST_TORCH=1)
  else()
    target_link_libraries(test_${name} PRIVATE episodic::core)
  endif()
  target_link_libraries(test_${name} PRIVATE fmt::fmt-header-only nlohmann_json::nlohmann_json Catch2::Catch2)
  target_compile_definitions(test_${name} PRIVATE
    EPISODIC_SOURCE_DIR="${PROJECT_SOURCE_DIR}" EPISODIC_BINARY_DIR="${PROJECT_BINARY_DIR}")
  catch_discover_tests(test_${name} TEST_PREFIX "${name}: " DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${name};${ARG_LABELS}" SKIP_REGULAR_EXPRESSION "EPISODIC_SKIP"
    ENVIRONMENT "OMP_WAIT_POLICY=passive")
endfunction()
