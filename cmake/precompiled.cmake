# rw_precompile(TARGET KIND): compiles the headers that most sources include once, not once a source:
# half of the time of a sanitized build. KIND is library or test. Builds without show that each source
# includes what it uses.
set(sanitized OFF)
if(RW_SANITIZE)
  set(sanitized ON)
endif()
option(RW_PRECOMPILED "Compile common headers once" ${sanitized})

# What tests call is optimized; tests themselves spend their time in being compiled.
function(rw_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O1>)
endfunction()

if(RW_PRECOMPILED)
  set(common ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  add_library(rw_precompiled_library OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(rw_precompiled_library PRIVATE rw_options)
  target_precompile_headers(rw_precompiled_library PRIVATE ${common})
  # A program, since its code may stand at other places than a library's.
  add_executable(rw_precompiled_test ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(rw_precompiled_test PRIVATE rw_options GTest::gtest GTest::gmock)
  rw_test_options(rw_precompiled_test)
  target_precompile_headers(rw_precompiled_test PRIVATE ${common} <gmock/gmock.h> <gtest/gtest.h>)
endif()

function(rw_precompile target kind)
  if(RW_PRECOMPILED)
    target_precompile_headers(${target} REUSE_FROM rw_precompiled_${kind})
  endif()
endfunction()
