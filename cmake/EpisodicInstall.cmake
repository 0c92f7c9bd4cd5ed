# The package: find_package(episodic [COMPONENTS core|episodic|device|device_torch|kernels]).
include(CMakePackageConfigHelpers)
set(EPISODIC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/episodic)

# One export set per component: a consumer of the core alone needs no torch.
install(TARGETS episodic_core EXPORT episodicCoreTargets)
install(EXPORT episodicCoreTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR})
install(TARGETS episodic EXPORT episodicTargets)
install(EXPORT episodicTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/episodic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.hpp")
if(EPISODIC_CUDA)
  install(TARGETS episodic_kernels EXPORT episodicKernelsTargets)
  install(EXPORT episodicKernelsTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR})
  install(TARGETS episodic_device EXPORT episodicDeviceTargets)
  install(EXPORT episodicDeviceTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR})
  install(TARGETS episodic_device_torch EXPORT episodicDeviceTorchTargets)
  install(EXPORT episodicDeviceTorchTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/episodic/kernels
    FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
endif()
if(EPISODIC_PROGRAMS)
  install(TARGETS episodic_program)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/recall-2m6 DESTINATION ${CMAKE_INSTALL_DATADIR}/episodic/models)
endif()

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/episodicConfig.cmake.in
  ${PROJECT_BINARY_DIR}/episodicConfig.cmake INSTALL_DESTINATION ${EPISODIC_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/episodicConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/episodicConfig.cmake ${PROJECT_BINARY_DIR}/episodicConfigVersion.cmake
  DESTINATION ${EPISODIC_PACKAGE_DIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cmake/ DESTINATION ${EPISODIC_PACKAGE_DIR}
  FILES_MATCHING PATTERN "Find*.cmake" PATTERN "EpisodicTorch.cmake")
