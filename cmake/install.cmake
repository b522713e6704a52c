# Installation: the library, the public header, pkg-config and CMake package files.
#
# The component `runtime` is the library alone; the Python wheel takes that one.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

if(TARGET ropewalk)
  # $ORIGIN: the wheel puts the libraries that this one needs beside it.
  set_target_properties(ropewalk PROPERTIES INSTALL_RPATH "$ORIGIN")
  install(TARGETS ropewalk EXPORT ropewalk-targets
    LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT runtime
    NAMELINK_COMPONENT development)
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ropewalk
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} COMPONENT development)
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

  # The prefix is found from the .pc file's own place, so that the installed tree may be moved.
  file(RELATIVE_PATH RW_PREFIX_FROM_PC
    ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
  configure_file(${CMAKE_CURRENT_LIST_DIR}/ropewalk.pc.in ${PROJECT_BINARY_DIR}/ropewalk.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/ropewalk.pc
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endif()
