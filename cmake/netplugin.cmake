# The network plugin for NCCL and RCCL: a module with the file names that each of them opens. Its tables are
# compiled into the module itself, since the linker would drop unreferenced tables of an archive.
set(plugin_exports ${PROJECT_SOURCE_DIR}/src/netplugin/exports.map)
add_library(nccl_net_ropewalk MODULE $<TARGET_OBJECTS:rw_netplugin>)
target_link_libraries(nccl_net_ropewalk PRIVATE rw_transport)
set_target_properties(nccl_net_ropewalk PROPERTIES OUTPUT_NAME nccl-net-ropewalk
  LINK_DEPENDS ${plugin_exports})
target_link_options(nccl_net_ropewalk PRIVATE -Wl,--exclude-libs,ALL
  -Wl,--version-script=${plugin_exports})
if(NOT RW_SANITIZE)
  target_link_options(nccl_net_ropewalk PRIVATE -Wl,--no-undefined)
endif()
# Every NCCL or RCCL that finds the file name without "ropewalk" loads it, even without a setting. So these
# names are in a folder of their own, as they are when installed.
set(RW_PLUGIN_DEFAULT_NAMES ropewalk/nccl-net/libnccl-net.so ropewalk/nccl-net/librccl-net.so)
list(TRANSFORM RW_PLUGIN_DEFAULT_NAMES PREPEND ${PROJECT_BINARY_DIR}/)
add_custom_command(TARGET nccl_net_ropewalk POST_BUILD
  COMMAND ${CMAKE_COMMAND} -E create_symlink libnccl-net-ropewalk.so
    ${PROJECT_BINARY_DIR}/librccl-net-ropewalk.so
  COMMAND ${CMAKE_COMMAND} -E make_directory ${PROJECT_BINARY_DIR}/ropewalk/nccl-net)
foreach(name IN LISTS RW_PLUGIN_DEFAULT_NAMES)
  add_custom_command(TARGET nccl_net_ropewalk POST_BUILD
    COMMAND ${CMAKE_COMMAND} -E create_symlink ../../libnccl-net-ropewalk.so ${name})
endforeach()
