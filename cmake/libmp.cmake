# libmp's API, and the COMM layer over it, as libraries of their own over the library's public API.
# In the build folder, too, they are in a folder of their own, since libmp.so is a short name.
function(rw_compat_library name folder)
  file(GLOB sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/${folder}/*.cc)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  set(exports ${PROJECT_SOURCE_DIR}/src/capi/${folder}/exports.map)
  add_library(${name} SHARED ${sources})
  target_compile_definitions(${name} PRIVATE MP_BUILDING_LIBRARY MP_NO_MPI)
  target_link_libraries(${name} PRIVATE rw_options ${ARGN})
  rw_precompile(${name} library)
  set_target_properties(${name} PROPERTIES VERSION 2.0 SOVERSION 2 LINK_DEPENDS ${exports}
    LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/ropewalk)
  target_include_directories(${name} INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include/ropewalk/compat>
    $<INSTALL_INTERFACE:include/ropewalk/compat>)
  target_link_options(${name} PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${exports})
  if(NOT RW_SANITIZE)
    target_link_options(${name} PRIVATE -Wl,--no-undefined)
  endif()
endfunction()

rw_compat_library(mp mp ropewalk nlohmann_json::nlohmann_json)
rw_compat_library(mpcomm mpcomm mp ropewalk)
