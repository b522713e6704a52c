# The program ropewalk-simgrid, if SimGrid is installed (Debian: libsimgrid-dev). Everything else
# works without it: the library has an engine of its own.
option(RW_SIMGRID "Build ropewalk-simgrid if SimGrid is found" ON)
if(RW_SIMGRID AND NOT RW_FUZZ AND NOT RW_SANITIZE)
  find_path(SIMGRID_INCLUDE simgrid/s4u.hpp)
  find_library(SIMGRID_LIBRARY simgrid)
  find_package(Boost QUIET)
  if(SIMGRID_INCLUDE AND SIMGRID_LIBRARY AND Boost_FOUND)
    # Its interface changes between releases; this code is written for 3.32 and releases with the same interface.
    set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)
    get_target_property(fmt_include fmt::fmt INTERFACE_INCLUDE_DIRECTORIES)
    try_compile(RW_SIMGRID_FITS ${PROJECT_BINARY_DIR}/simgrid-fits
      ${PROJECT_SOURCE_DIR}/src/simgrid/simgrid_engine.cc
      CMAKE_FLAGS "-DINCLUDE_DIRECTORIES=${PROJECT_SOURCE_DIR}/src;${fmt_include};${SIMGRID_INCLUDE};${Boost_INCLUDE_DIRS}"
      CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON)
    unset(CMAKE_TRY_COMPILE_TARGET_TYPE)
  endif()
  if(RW_SIMGRID_FITS)
    add_executable(ropewalk-simgrid ${PROJECT_SOURCE_DIR}/src/simgrid/main.cc
      ${PROJECT_SOURCE_DIR}/src/simgrid/simgrid_engine.cc)
    target_link_libraries(ropewalk-simgrid PRIVATE rw_schedule ${SIMGRID_LIBRARY})
    target_include_directories(ropewalk-simgrid SYSTEM PRIVATE
      ${SIMGRID_INCLUDE} ${Boost_INCLUDE_DIRS})
    # In the wheel it is in the library's folder, as are the libraries that both need, but not SimGrid.
    set_target_properties(ropewalk-simgrid PROPERTIES INSTALL_RPATH "$ORIGIN")
    install(TARGETS ropewalk-simgrid RUNTIME DESTINATION bin COMPONENT simgrid)
  else()
    message(STATUS "no ropewalk-simgrid: SimGrid (Debian: libsimgrid-dev) not found, or too different")
  endif()
endif()
