# rw_precompile(TARGET KIND): compiles the headers that most sources include once, not once a source, which
# takes a third of the time of a build. KIND is library or test. The code is the same. Off by default where
# ccache is, which then finds what it has kept. clang-tidy reads the sources without (dev/run-tidy), so that
# each is seen to include what it uses.
set(default ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache" AND NOT RW_SANITIZE)
  set(default OFF)
endif()
option(RW_PRECOMPILED "Compile common headers once" ${default})

# Where the standard library's headers are precompiled, GCC 12 no longer sees at -O3 that strings moved within
# them are theirs, and warns of places that have nothing wrong (15 in half of the tree, by the first of these
# four; by the second where the first is off). Builds without, as those with ccache, and Clang's warn as before.
if(RW_PRECOMPILED)
  target_compile_options(rw_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow
    -Wno-restrict>)
endif()

# What tests call is optimized; tests themselves spend their time in being compiled.
function(rw_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

if(RW_PRECOMPILED)
  set(common ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  add_library(rw_precompiled_library OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(rw_precompiled_library PRIVATE rw_options)
  target_precompile_headers(rw_precompiled_library PRIVATE ${common})
  if(RW_TESTS)
    # A program, since its code may stand at other places than a library's.
    add_executable(rw_precompiled_test ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
    target_link_libraries(rw_precompiled_test PRIVATE rw_options GTest::gtest GTest::gmock)
    rw_test_options(rw_precompiled_test)
    target_precompile_headers(rw_precompiled_test PRIVATE ${common} <gmock/gmock.h> <gtest/gtest.h>)
  endif()
endif()

function(rw_precompile target kind)
  if(RW_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM rw_precompiled_${kind})
  endif()
endfunction()
