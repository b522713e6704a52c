# rw_optimize(LAYER): how much the compiler is to optimize what is not on the way of data and messages. -O3 takes 1.4
# times as long to compile as -O1 (`make bench` in a fresh clone is mostly the compiler's time). Precompiled headers serve all
# levels.
#
# Searches for plans take 1.3 times as long by -O2 and 1.7 by -O1, nearly all of it in these sources, which keep -O3; the times
# of checks and prices are the same by -O2 (`ropewalk explain` on a DGX-1V and a DGX-2).
if(NOT RW_SANITIZE)
  foreach(source IN ITEMS plan/simplex plan/closure plan/max_flow plan/peeling)
    set(path ${PROJECT_SOURCE_DIR}/src/${source}.cc)
    if(NOT EXISTS ${path})
      message(FATAL_ERROR "no source ${path}")
    endif()
    set_source_files_properties(${path} PROPERTIES COMPILE_OPTIONS $<$<CONFIG:Release>:-O3> SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endif()
set(rw_level_plan -O1)
set(rw_level_schedule -O2)
set(rw_level_tune -O2)
# They read, write and watch.
foreach(layer IN ITEMS machine monitor topology)
  set(rw_level_${layer} -O1)
endforeach()

function(rw_optimize layer)
  if(NOT rw_level_${layer} OR RW_SANITIZE)  # these have levels of their own (cmake/layers.cmake)
    return()
  endif()
  target_compile_options(rw_${layer} PRIVATE $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:${rw_level_${layer}}>)
endfunction()

# GCC collects its garbage when the heap has grown by some part; with half a GiB to begin with it takes 0.9 of the time and
# up to 190 MiB more. ninja runs two compilers more than there are cores. Not with ccache, whose keys would depend on the
# machine's memory.
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND NOT CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  cmake_host_system_information(RESULT rw_memory_mib QUERY TOTAL_PHYSICAL_MEMORY)
  cmake_host_system_information(RESULT rw_cores QUERY NUMBER_OF_LOGICAL_CORES)
  math(EXPR rw_mib_each "${rw_memory_mib} / (${rw_cores} + 2)")
  if(rw_mib_each GREATER 1536)
    target_compile_options(rw_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:SHELL:--param ggc-min-heapsize=524288>)
  endif()
endif()
