# rw_layer(NAME [DEPENDS layer...] [LIBRARIES target...])
#
# A layer is a folder src/NAME: every *.cc below it is its library rw_NAME, every *_test.cc its unit
# test NAME_test, every *_fuzz.cc a fuzzer. DEPENDS are the layers below that it may include;
# tests/layers_test.py checks the includes.
add_library(rw_options INTERFACE)
target_include_directories(rw_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_compile_options(rw_options INTERFACE
  $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wall -Wextra -Wshadow -Wconversion
  $<$<BOOL:${RW_WERROR}>:-Werror>>)
# No fused multiply-add: it rounds once, so results would differ between processors.
target_compile_options(rw_options INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:--expt-relaxed-constexpr --fmad=false>
  $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-ffp-contract=off>)
target_link_libraries(rw_options INTERFACE Threads::Threads fmt::fmt)
# Clang checks what the mutexes guard (core/mutex.h).
target_compile_options(rw_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-Wthread-safety>)
if(RW_FUZZ AND NOT RW_SANITIZE)
  set(RW_SANITIZE address,undefined)
endif()
if(RW_SANITIZE)
  # -O0 and line numbers only: optimization and full debug information cost more compile time than the
  # tests gain, above all for vector code. One vector target for the same reason: the others differ in
  # instructions, not in the memory that they access. But what searches for plans: tests of four layers wait for it.
  target_compile_options(rw_options INTERFACE -fsanitize=${RW_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer $<IF:$<STREQUAL:$<TARGET_PROPERTY:NAME>,rw_plan>,-O1,-O0>)
  # Of tests without line numbers, which take a fifth of the time to compile them: GoogleTest prints those that matter.
  target_compile_options(rw_options INTERFACE $<IF:$<BOOL:$<TARGET_PROPERTY:RW_IS_TEST>>,-g0,-g1>)
  # UBSan's look at every address that is used doubles the object files and takes a fifth of the time to compile them.
  # That serves where bytes of shared and foreign memory become objects (transport, link, message, executor, comm), not
  # in code that has only objects of its own.
  if(RW_SANITIZE MATCHES undefined)
    target_compile_options(rw_options INTERFACE
      $<$<BOOL:$<TARGET_PROPERTY:RW_OWN_OBJECTS>>:-fno-sanitize=alignment,null,object-size,vptr>)
  endif()
  # Libraries opened at run time are called by declarations of our own, whose type names differ from the
  # libraries'.
  target_compile_options(rw_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  target_compile_definitions(rw_options INTERFACE HWY_COMPILE_ONLY_STATIC)
  target_link_options(rw_options INTERFACE -fsanitize=${RW_SANITIZE})
  # Links the tests of a sanitized tree in a fifth of GNU ld's time.
  find_program(RW_LLD ld.lld)
  if(RW_LLD AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang")
    target_link_options(rw_options INTERFACE -fuse-ld=lld)
  endif()
  # In these sources tests spend most of their time without optimization: they make and check data, price and check
  # schedules, and sum. The vector code takes minutes to compile with UBSan and optimization, and has tests of its own
  # whose other sources UBSan sees.
  foreach(source schedule/pattern schedule/lags schedule/check schedule/symbolic_run schedule/fair_share tune/machine_cost
      transport/checksum transport/messaging/verification executor/host/kernels_float)
    set(path ${PROJECT_SOURCE_DIR}/src/${source}.cc)
    if(NOT EXISTS ${path})
      message(FATAL_ERROR "no source ${path}")
    endif()
    set(options -O1)
    if(source MATCHES "/kernels_")
      list(APPEND options -fno-sanitize=undefined)
    endif()
    set_source_files_properties(${path} PROPERTIES COMPILE_OPTIONS "${options}" SKIP_PRECOMPILE_HEADERS ON
      SKIP_UNITY_BUILD_INCLUSION ON)
  endforeach()
endif()
# What the library executes steers the fuzzers, but not what tests do.
if(RW_FUZZ)
  target_compile_options(rw_options INTERFACE
    $<$<NOT:$<BOOL:$<TARGET_PROPERTY:RW_IS_TEST>>>:-fsanitize=fuzzer-no-link>)
endif()

include(cmake/precompiled.cmake)
include(cmake/optimization.cmake)
configure_file(${PROJECT_SOURCE_DIR}/cmake/source_dir.h.in ${PROJECT_BINARY_DIR}/for_tests/source_dir.h @ONLY)

function(rw_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS;LIBRARIES" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${folder}/*_test.cc)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${folder}/*_fuzz.cc)
  # Folders named cuda/ are part of builds with CUDA only.
  if(RW_HAVE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${folder}/*.cu)
    list(APPEND sources ${kernels})
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cc$")
    # Only these sources see CUDA's headers, so that all other objects are the same as in a build without CUDA.
    set(for_cuda ${sources} ${tests})
    list(FILTER for_cuda INCLUDE REGEX "/cuda/[^/]*\\.cc$")
    set_source_files_properties(${for_cuda} PROPERTIES COMPILE_OPTIONS "${RW_CUDA_HEADERS}")
  else()
    list(FILTER sources EXCLUDE REGEX "/cuda/")
    list(FILTER tests EXCLUDE REGEX "/cuda/")
  endif()
  if(NOT RW_HAVE_OFI)
    list(FILTER sources EXCLUDE REGEX "/messaging/ofi/")
    list(FILTER tests EXCLUDE REGEX "/messaging/ofi/")
  endif()
  if(NOT RW_HAVE_PSM2)
    list(FILTER sources EXCLUDE REGEX "/messaging/psm2/")
  endif()
  if(NOT RW_TEST_PSM2)
    list(FILTER tests EXCLUDE REGEX "/messaging/psm2/")
  endif()
  if(tests)
    list(REMOVE_ITEM sources ${tests})
    if(NOT RW_SLOW_TESTS)
      list(FILTER tests EXCLUDE REGEX "_types_test\\.cc$")
    endif()
  endif()
  if(fuzzers)
    list(REMOVE_ITEM sources ${fuzzers})
  endif()
  if(NOT sources)
    return()
  endif()
  add_library(rw_${name} STATIC ${sources})
  target_link_libraries(rw_${name} PUBLIC rw_options ${LAYER_LIBRARIES})
  if(name MATCHES "^(diagnose|plan|schedule|topology|tune)$")
    set_target_properties(rw_${name} PROPERTIES RW_OWN_OBJECTS ON)
  endif()
  rw_optimize(${name})
  if(NOT (RW_SANITIZE AND name STREQUAL "plan"))  # its level of optimization is another
    rw_precompile(rw_${name} library)
  endif()
  # The executor's vector code includes its own sources, once for each kind of processor.
  if(NOT name STREQUAL "executor")
    rw_unity(rw_${name})
  endif()
  foreach(below IN LISTS LAYER_DEPENDS)
    if(TARGET rw_${below})
      target_link_libraries(rw_${name} PUBLIC rw_${below})
    endif()
  endforeach()
  if(RW_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE rw_${name} GTest::gtest GTest::gmock
      GTest::gtest_main)
    target_include_directories(${name}_test PRIVATE ${PROJECT_BINARY_DIR}/for_tests)
    rw_test_options(${name}_test)
    rw_precompile(${name}_test test)
    rw_unity(${name}_test 8)
    rw_discover_tests(${name}_test TIMEOUT 120)
  endif()
  if(RW_FUZZ)
    foreach(fuzzer IN LISTS fuzzers)
      get_filename_component(target ${fuzzer} NAME_WE)
      add_executable(${target} ${fuzzer})
      target_link_libraries(${target} PRIVATE rw_${name})
      target_link_options(${target} PRIVATE -fsanitize=fuzzer)
    endforeach()
  endif()
endfunction()

rw_layer(core)
rw_layer(transport DEPENDS core LIBRARIES ${CMAKE_DL_LIBS})
if(RW_HAVE_OFI)
  target_include_directories(rw_transport SYSTEM PRIVATE ${RW_OFI_INCLUDE})
  target_compile_definitions(rw_transport PRIVATE RW_HAVE_OFI)
  if(TARGET transport_test)
    target_include_directories(transport_test SYSTEM PRIVATE ${RW_OFI_INCLUDE})
  endif()
endif()
if(RW_HAVE_PSM2)
  target_compile_definitions(rw_transport PRIVATE RW_HAVE_PSM2)
endif()
rw_layer(netplugin DEPENDS core transport)
rw_layer(profiler DEPENDS core LIBRARIES nlohmann_json::nlohmann_json)
if(RW_LIBRARY_ONLY)  # which has no part of them
  set_target_properties(rw_netplugin rw_profiler PROPERTIES EXCLUDE_FROM_ALL ON)
endif()
rw_layer(topology DEPENDS core LIBRARIES nlohmann_json::nlohmann_json PkgConfig::PUGIXML
  ${CMAKE_DL_LIBS})
rw_layer(plan DEPENDS core topology LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(schedule DEPENDS core topology plan LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(executor DEPENDS core schedule transport LIBRARIES PkgConfig::HWY)
# The library of `make bench` is for this machine: its vector kernels are compiled for one target instead of four, a
# tenth of the build's time.
if(RW_LIBRARY_ONLY AND RW_NATIVE_KERNELS)
  file(GLOB vector_kernels ${PROJECT_SOURCE_DIR}/src/executor/host/kernels_*.cc)
  set_source_files_properties(${vector_kernels} PROPERTIES COMPILE_OPTIONS -march=native
    COMPILE_DEFINITIONS HWY_COMPILE_ONLY_STATIC SKIP_PRECOMPILE_HEADERS ON)
endif()
if(RW_HAVE_CUDA)
  target_link_libraries(rw_executor INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
endif()
rw_layer(handshake DEPENDS core transport executor)
rw_layer(bootstrap DEPENDS core LIBRARIES PkgConfig::SODIUM)
rw_layer(monitor DEPENDS core executor bootstrap LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(trace DEPENDS core executor bootstrap LIBRARIES ${CMAKE_DL_LIBS})
rw_layer(link DEPENDS core transport executor bootstrap LIBRARIES PkgConfig::SODIUM)
rw_layer(message DEPENDS core transport executor bootstrap link)
rw_layer(tune DEPENDS core topology plan schedule executor LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(machine DEPENDS core topology plan schedule transport bootstrap link tune)
rw_layer(comm DEPENDS core topology plan schedule transport executor bootstrap link message tune machine handshake
  monitor trace LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(diagnose DEPENDS core schedule transport executor link tune comm
  LIBRARIES nlohmann_json::nlohmann_json)
if(RW_HAVE_OFI)
  target_compile_definitions(rw_diagnose PRIVATE RW_HAVE_OFI)
endif()
if(RW_HAVE_PSM2)
  target_compile_definitions(rw_diagnose PRIVATE RW_HAVE_PSM2)
endif()

# The library: every layer behind the exported C functions.
file(GLOB capi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/*.cc)
list(FILTER capi_sources EXCLUDE REGEX "_test\\.cc$")
if(capi_sources)
  add_library(ropewalk SHARED ${capi_sources})
  target_compile_definitions(ropewalk PRIVATE RW_BUILDING_LIBRARY)
  target_link_libraries(ropewalk PRIVATE rw_diagnose rw_comm rw_plan rw_topology nlohmann_json::nlohmann_json)
  rw_precompile(ropewalk library)
  rw_unity(ropewalk)
  target_include_directories(ropewalk INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  set_target_properties(ropewalk PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  target_link_options(ropewalk PRIVATE -Wl,--exclude-libs,ALL)
  if(NOT RW_SANITIZE)  # whose functions are in the program
    target_link_options(ropewalk PRIVATE -Wl,--no-undefined)
  endif()
  # Tests of the C API as programs use it: by its headers and the library's exports.
  file(GLOB capi_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/*_test.cc)
  if(RW_TESTS AND capi_tests)
    add_executable(capi_test ${capi_tests})
    target_link_libraries(capi_test PRIVATE ropewalk rw_options GTest::gtest GTest::gtest_main)
    target_include_directories(capi_test PRIVATE ${PROJECT_BINARY_DIR}/for_tests)
    rw_test_options(capi_test)
    rw_precompile(capi_test test)
    rw_unity(capi_test 8)
    rw_discover_tests(capi_test TIMEOUT 120)
  endif()
endif()

# NCCL's API over the same layers, in builds with CUDA: a library that replaces NVIDIA's for
# programs that were linked with it.
if(RW_HAVE_CUDA)
  file(GLOB nccl_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/nccl/*.cc)
  list(FILTER nccl_sources EXCLUDE REGEX "_test\\.cc$")
  set(nccl_exports ${PROJECT_SOURCE_DIR}/src/capi/nccl/exports.map)
  add_library(rw_nccl STATIC ${nccl_sources})
  target_link_libraries(rw_nccl PUBLIC rw_comm)
  rw_precompile(rw_nccl library)
  rw_unity(rw_nccl)
  add_library(nccl SHARED $<TARGET_OBJECTS:rw_nccl>)
  target_link_libraries(nccl PRIVATE rw_comm)
  set_target_properties(nccl PROPERTIES SOVERSION 2 LINK_DEPENDS ${nccl_exports})
  target_link_options(nccl PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${nccl_exports})
  if(NOT RW_SANITIZE)
    target_link_options(nccl PRIVATE -Wl,--no-undefined)
  endif()
  # Tests of what needs no GPU but software that stands in for its driver.
  file(GLOB nccl_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/nccl/*_test.cc)
  if(RW_TESTS AND nccl_tests)
    add_executable(nccl_test ${nccl_tests})
    target_link_libraries(nccl_test PRIVATE rw_nccl GTest::gtest GTest::gtest_main)
    rw_test_options(nccl_test)
    rw_precompile(nccl_test test)
    rw_unity(nccl_test 8)
    rw_discover_tests(nccl_test TIMEOUT 120)
  endif()
endif()
