# rw_precompile(TARGET KIND): compiles common headers once instead of once for each source, which otherwise
# takes a third of a build's time. KIND is library or test. The generated code is the same. Off by default with
# ccache, so that ccache can reuse objects. clang-tidy runs without precompiled headers (dev/run-tidy), so that
# it finds sources with missing includes.
set(default ON)
if(CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
  set(default OFF)
endif()
option(RW_PRECOMPILED "Precompile common headers" ${default})

# With precompiled headers of the standard library, GCC 12 gives false warnings at -O3 about strings that are
# moved (15 in half of the tree by the first of these four, by the second if the first is off). Builds without
# precompiled headers, such as those with ccache, and builds by Clang keep these warnings.
if(RW_PRECOMPILED)
  target_compile_options(rw_options INTERFACE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-array-bounds -Wno-stringop-overread -Wno-stringop-overflow
    -Wno-restrict>)
endif()

# The code under test is optimized; for the tests themselves compile time matters more. cmake/layers.cmake reads the property.
function(rw_test_options target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:Release>:-O0>)
  set_target_properties(${target} PROPERTIES RW_IS_TEST ON RW_OWN_OBJECTS ON)
endfunction()

if(RW_PRECOMPILED)
  set(common ${PROJECT_SOURCE_DIR}/cmake/precompiled.h)
  add_library(rw_precompiled_library OBJECT ${PROJECT_SOURCE_DIR}/cmake/precompiled.cc)
  target_link_libraries(rw_precompiled_library PRIVATE rw_options)
  target_precompile_headers(rw_precompiled_library PRIVATE ${common})
  if(RW_TESTS)
    # A program, since it is compiled without position-independent code.
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

# rw_unity(TARGET [AT_ONCE]): the compiler takes several sources as one, sixteen unless said otherwise, so that it reads
# their headers once, which halves the build's time. Which ones go together is the same with and without the optional
# parts, whose sources go by themselves: names of two sources may clash, and one may hide a header's
# (tests/python/unity_test.py). -DRW_UNITY=OFF suits work on the code: a changed source is compiled without its
# neighbours.
option(RW_UNITY "Compile several sources as one" ON)
function(rw_unity target)
  if(NOT RW_UNITY)
    return()
  endif()
  # What each call runs through: in a large unit the compiler stops to put functions into their callers.
  set(alone "src/(comm/communicator|comm/host_executor|capi/operations)\\.cc$")
  set(at_once 16)
  if(ARGC GREATER 1)
    set(at_once ${ARGV1})
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  foreach(source IN LISTS sources)
    # Tests of all types take a minute each, so that two as one would only keep a core idle.
    if(NOT source MATCHES "\\.cc$" OR source MATCHES "_types_test\\.cc$")
      continue()
    endif()
    if(source MATCHES "${alone}")
      set_source_files_properties(${source} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
      continue()
    endif()
    set(part always)
    # The folders of the repository alone: it may itself lie in one that is called so.
    file(RELATIVE_PATH in_repository ${PROJECT_SOURCE_DIR} ${source})
    if(in_repository MATCHES "/(cuda|ofi|psm2|no_cuda)[/.]")
      set(part ${CMAKE_MATCH_1})
    endif()
    if(NOT DEFINED number_${part})
      set(number_${part} 0)
    endif()
    math(EXPR group "${number_${part}} / ${at_once}")
    math(EXPR number_${part} "${number_${part}} + 1")
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${part}_${group})
  endforeach()
endfunction()
