# The package: find_package(episodic [COMPONENTS headers|core|episodic|server|mpi|redis|c|torch|device|device_torch|kernels]); the
# programs; and what CPack makes of them.
include(CMakePackageConfigHelpers)
# Each is a component of the installation too, `cmake --install build --component core`; what a component stands on
# is installed by its own name, and `headers` has the package's files: headers, then core, then episodic or device,
# then torch.
# `programs` and what they need of models and documents is the last one.
set(EPISODIC_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/episodic)

# One export set per component: a consumer of the core alone needs no torch, one of the headers nothing.
install(TARGETS episodic_headers EXPORT episodicHeadersTargets COMPONENT headers)
install(EXPORT episodicHeadersTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT headers)
install(TARGETS episodic_core EXPORT episodicCoreTargets COMPONENT core)
install(EXPORT episodicCoreTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT core)
install(TARGETS episodic EXPORT episodicTargets COMPONENT episodic)
install(EXPORT episodicTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT episodic)
install(TARGETS episodic_server EXPORT episodicServerTargets COMPONENT server)
install(EXPORT episodicServerTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT server)
if(TARGET episodic_mpi)
  install(TARGETS episodic_mpi EXPORT episodicMpiTargets COMPONENT mpi)
  install(EXPORT episodicMpiTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT mpi)
endif()
if(TARGET episodic_redis)
  install(TARGETS episodic_redis EXPORT episodicRedisTargets COMPONENT redis)
  install(EXPORT episodicRedisTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT redis)
endif()
if(TARGET episodic_c)
  install(TARGETS episodic_c EXPORT episodicCTargets COMPONENT c)
  install(EXPORT episodicCTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT c)
endif()
if(EPISODIC_TORCH)
  install(TARGETS episodic_torch EXPORT episodicTorchTargets COMPONENT torch)
  install(EXPORT episodicTorchTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT torch)
  # for torch.ops.load_library; a build of some targets only may lack it
  install(TARGETS episodic_torch_ops LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
    COMPONENT torch OPTIONAL)
endif()
install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/episodic DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT headers FILES_MATCHING PATTERN "*.hpp" PATTERN "*.inc" PATTERN "*.h")
if(EPISODIC_CUDA)
  install(TARGETS episodic_kernels EXPORT episodicKernelsTargets COMPONENT kernels)
  install(EXPORT episodicKernelsTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT kernels)
  install(TARGETS episodic_device EXPORT episodicDeviceTargets COMPONENT device)
  install(EXPORT episodicDeviceTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT device)
  if(EPISODIC_TORCH)
    install(TARGETS episodic_device_torch EXPORT episodicDeviceTorchTargets COMPONENT device_torch)
    install(EXPORT episodicDeviceTorchTargets NAMESPACE episodic:: DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT device_torch)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/kernels/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/episodic_kernels
    COMPONENT kernels FILES_MATCHING PATTERN "*.hpp" PATTERN "*.cuh")
endif()
if(EPISODIC_PROGRAMS)
  install(TARGETS episodic_program COMPONENT programs)
  if(TARGET episodic_train_lora)  # a build of some targets only may lack it
    install(TARGETS episodic_train_lora COMPONENT torch OPTIONAL)
  endif()
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/models/recall-2m6 DESTINATION ${CMAKE_INSTALL_DATADIR}/episodic/models
    COMPONENT programs)
endif()
configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/episodicConfig.cmake.in
  ${PROJECT_BINARY_DIR}/episodicConfig.cmake INSTALL_DESTINATION ${EPISODIC_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/episodicConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/episodicConfig.cmake ${PROJECT_BINARY_DIR}/episodicConfigVersion.cmake
  DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT headers)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/cmake/ DESTINATION ${EPISODIC_PACKAGE_DIR} COMPONENT headers
  FILES_MATCHING PATTERN "Find*.cmake" PATTERN "EpisodicTorch.cmake")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/episodic RENAME copyright
  COMPONENT headers)

# cpack -G DEB, from a build configured with -DEPISODIC_TORCH=OFF -DCMAKE_INSTALL_PREFIX=/usr (preset `package`).
set(CPACK_PACKAGE_NAME episodic)
set(CPACK_PACKAGE_VENDOR "episodic")
set(CPACK_PACKAGE_CONTACT "episodic maintainers <episodic@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_GENERATOR DEB)
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_DEPENDS
  "libc6 (>= 2.36), libstdc++6 (>= 12), libgomp1, libblas3, liblapack3, libfmt9, libpcre2-8-0, libutf8proc2, liburing2")
if(libedit_FOUND)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libedit2")
endif()
if(TARGET episodic_mpi)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libopenmpi3")
endif()
if(TARGET episodic_redis)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libhiredis0.14")
endif()
if(httplib_LIBRARY)
  string(APPEND CPACK_DEBIAN_PACKAGE_DEPENDS ", libcpp-httplib0.11")
endif()
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS "bible-kjv")
include(CPack)
