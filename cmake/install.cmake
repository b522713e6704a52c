# Installation: the library, the public headers, pkg-config and CMake package files.
#
# The component `runtime` has what programs load or run, without headers; the Python wheel contains it.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET ropewalk)
  # $ORIGIN: in the wheel the libraries that this one needs are in the same folder.
  set_target_properties(ropewalk PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ropewalk EXPORT ropewalk-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
    NAMELINK_COMPONENT development)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ropewalk
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
  # NCCL's API has a folder of its own: among the system's libraries it would replace NVIDIA's library
  # for all programs.
  add_custom_target(runtime DEPENDS ropewalk)
  if(TARGET nccl_net_ropewalk)
    # NCCL and RCCL open the network plugin by these names; programs do not link with it.
    add_dependencies(runtime nccl_net_ropewalk)
    # The wheel also has it in a folder below the libraries.
    set_target_properties(nccl_net_ropewalk PROPERTIES INSTALL_RPATH "$ORIGIN:$ORIGIN/..")
    install(TARGETS nccl_net_ropewalk LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
    install(FILES ${PROJECT_BINARY_DIR}/librccl-net-ropewalk.so
      DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime)
    install(FILES ${RW_PLUGIN_DEFAULT_NAMES}
      DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk/nccl-net COMPONENT runtime)
  endif()
  if(TARGET nccl_profiler_ropewalk)
    add_dependencies(runtime nccl_profiler_ropewalk)
    set_target_properties(nccl_profiler_ropewalk PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS nccl_profiler_ropewalk LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
      COMPONENT runtime)
  endif()
  if(TARGET nccl)
    add_dependencies(runtime nccl)
    set_target_properties(nccl PROPERTIES INSTALL_RPATH "$ORIGIN:$ORIGIN/..")
    install(TARGETS nccl LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk COMPONENT runtime
      NAMELINK_SKIP)
  endif()
  if(TARGET mp)
    # As NCCL's API not among the system's libraries: libmp.so was also the name of one of GMP's.
    add_dependencies(runtime mp mpcomm)
    set_target_properties(mp mpcomm PROPERTIES INSTALL_RPATH "$ORIGIN:$ORIGIN/..")
    install(TARGETS mp mpcomm LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}/ropewalk COMPONENT runtime
      NAMELINK_COMPONENT development)
  endif()
  if(TARGET ropewalk-check-plugin)
    # The program behind `ropewalk check-plugin`; in the wheel it is in the library's folder.
    add_dependencies(runtime ropewalk-check-plugin)
    install(TARGETS ropewalk-check-plugin RUNTIME DESTINATION bin COMPONENT runtime)
  endif()
  # A component of its own: it needs SimGrid, which few systems have. The wheel contains it, too.
  if(TARGET ropewalk-simgrid)
    add_dependencies(runtime ropewalk-simgrid)
  endif()
  install(EXPORT ropewalk-targets NAMESPACE ropewalk::
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ropewalk COMPONENT development)

  configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/ropewalk-config.cmake.in
    ${PROJECT_BINARY_DIR}/ropewalk-config.cmake
    INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ropewalk)
  write_basic_package_version_file(${PROJECT_BINARY_DIR}/ropewalk-config-version.cmake
    COMPATIBILITY SameMinorVersion)
  install(FILES ${PROJECT_BINARY_DIR}/ropewalk-config.cmake
    ${PROJECT_BINARY_DIR}/ropewalk-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/ropewalk COMPONENT development)

  # The prefix is relative to the .pc file, so that the installed tree can be moved.
  file(RELATIVE_PATH RW_PREFIX_FROM_PC
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/ropewalk.pc.in ${PROJECT_BINARY_DIR}/ropewalk.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/ropewalk.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
