# The profiler plugin for NCCL (NCCL_PROFILER_PLUGIN=ropewalk). As with the network plugin, nothing refers to
# its tables, so that they are compiled into the module itself.
set(profiler_exports ${PROJECT_SOURCE_DIR}/src/profiler/exports.map)
add_library(nccl_profiler_ropewalk MODULE $<TARGET_OBJECTS:rw_profiler>)
target_link_libraries(nccl_profiler_ropewalk PRIVATE rw_core)
set_target_properties(nccl_profiler_ropewalk PROPERTIES OUTPUT_NAME nccl-profiler-ropewalk
  LINK_DEPENDS ${profiler_exports})
# NCCL unloads it with the last communicator; its handler of a signal (TRACE_SIGNAL) stays.
target_link_options(nccl_profiler_ropewalk PRIVATE -Wl,-z,nodelete -Wl,--exclude-libs,ALL
  -Wl,--version-script=${profiler_exports})
if(NOT RW_SANITIZE)
  target_link_options(nccl_profiler_ropewalk PRIVATE -Wl,--no-undefined)
endif()
