# rw_layer(NAME [DEPENDS layer...] [LIBRARIES target...])
#
# A layer is a folder src/NAME: every *.cc below it is its library rw_NAME, every *_test.cc its unit
# test NAME_test, every *_fuzz.cc a fuzzer. DEPENDS are the layers below that it may include;
# tests/layers_test.py holds the includes to that.
add_library(rw_options INTERFACE)
target_include_directories(rw_options INTERFACE
  $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/src> $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>)
target_compile_options(rw_options INTERFACE
  $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wall -Wextra -Wshadow -Wconversion
  $<$<BOOL:${RW_WERROR}>:-Werror>>)
# A product fused with a sum rounds once: results would differ between processors.
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
  # As it stands, with line numbers: more of either costs more to compile than the tests gain, vector
  # code above all. One vector target for the same reason: the others differ in instructions, not in
  # what they touch.
  target_compile_options(rw_options INTERFACE -fsanitize=${RW_SANITIZE} -fno-sanitize-recover=all
    -fno-omit-frame-pointer -O0 -g1)
  # Libraries that are found at run time are called by declarations of our own, whose types have other
  # names than the libraries'.
  target_compile_options(rw_options INTERFACE $<$<CXX_COMPILER_ID:Clang>:-fno-sanitize=function>)
  target_compile_definitions(rw_options INTERFACE HWY_COMPILE_ONLY_STATIC)
  target_link_options(rw_options INTERFACE -fsanitize=${RW_SANITIZE})
endif()
if(RW_FUZZ)
  target_compile_options(rw_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

include(cmake/precompiled.cmake)

function(rw_layer name)
  cmake_parse_arguments(LAYER "" "" "DEPENDS;LIBRARIES" ${ARGN})
  set(folder ${PROJECT_SOURCE_DIR}/src/${name})
  file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${folder}/*.cc)
  file(GLOB_RECURSE tests CONFIGURE_DEPENDS ${folder}/*_test.cc)
  file(GLOB_RECURSE fuzzers CONFIGURE_DEPENDS ${folder}/*_fuzz.cc)
  # Folders called cuda/ are for builds that have it.
  if(RW_HAVE_CUDA)
    file(GLOB_RECURSE kernels CONFIGURE_DEPENDS ${folder}/*.cu)
    list(APPEND sources ${kernels})
    list(FILTER sources EXCLUDE REGEX "/no_cuda\\.cc$")
    # CUDA's headers are for these sources alone: the objects of all others are those of a build without.
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
  rw_precompile(rw_${name} library)
  foreach(below IN LISTS LAYER_DEPENDS)
    if(TARGET rw_${below})
      target_link_libraries(rw_${name} PUBLIC rw_${below})
    endif()
  endforeach()
  if(RW_TESTS AND tests)
    add_executable(${name}_test ${tests})
    target_link_libraries(${name}_test PRIVATE rw_${name} GTest::gtest GTest::gmock
      GTest::gtest_main)
    target_compile_definitions(${name}_test PRIVATE RW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    rw_test_options(${name}_test)
    rw_precompile(${name}_test test)
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
rw_layer(netplugin DEPENDS core transport)
rw_layer(topology DEPENDS core LIBRARIES nlohmann_json::nlohmann_json PkgConfig::PUGIXML
  ${CMAKE_DL_LIBS})
rw_layer(plan DEPENDS core topology LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(schedule DEPENDS core topology plan LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(executor DEPENDS core schedule transport LIBRARIES PkgConfig::HWY)
if(RW_HAVE_CUDA)
  target_link_libraries(rw_executor INTERFACE $<LINK_ONLY:CUDA::cudart_static>)
endif()
rw_layer(bootstrap DEPENDS core LIBRARIES PkgConfig::SODIUM)
rw_layer(link DEPENDS core transport executor bootstrap LIBRARIES PkgConfig::SODIUM)
rw_layer(tune DEPENDS core topology plan schedule executor LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(comm DEPENDS core topology plan schedule transport executor bootstrap link tune
  LIBRARIES nlohmann_json::nlohmann_json)
rw_layer(diagnose DEPENDS core schedule transport executor link tune comm
  LIBRARIES nlohmann_json::nlohmann_json)
if(RW_HAVE_OFI)
  target_compile_definitions(rw_diagnose PRIVATE RW_HAVE_OFI)
endif()

# The library: every layer behind the exported C functions.
file(GLOB capi_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/*.cc)
list(FILTER capi_sources EXCLUDE REGEX "_test\\.cc$")
if(capi_sources)
  add_library(ropewalk SHARED ${capi_sources})
  target_compile_definitions(ropewalk PRIVATE RW_BUILDING_LIBRARY)
  target_link_libraries(ropewalk PRIVATE rw_diagnose rw_comm rw_plan rw_topology nlohmann_json::nlohmann_json)
  rw_precompile(ropewalk library)
  target_include_directories(ropewalk INTERFACE
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  set_target_properties(ropewalk PROPERTIES VERSION ${PROJECT_VERSION} SOVERSION 0)
  target_link_options(ropewalk PRIVATE -Wl,--exclude-libs,ALL)
  if(NOT RW_SANITIZE)  # whose functions are in the program
    target_link_options(ropewalk PRIVATE -Wl,--no-undefined)
  endif()
  # Tests of the C API as programs have it: by its headers and the library's exports.
  file(GLOB capi_tests CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/*_test.cc)
  if(RW_TESTS AND capi_tests)
    add_executable(capi_test ${capi_tests})
    target_link_libraries(capi_test PRIVATE ropewalk rw_options GTest::gtest GTest::gtest_main)
    target_compile_definitions(capi_test PRIVATE RW_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
    rw_test_options(capi_test)
    rw_precompile(capi_test test)
    rw_discover_tests(capi_test TIMEOUT 120)
  endif()
endif()

# NCCL's API over the same layers, where GPUs can be used: a library that takes the place of
# NVIDIA's under programs that were linked with it.
if(RW_HAVE_CUDA)
  file(GLOB nccl_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/capi/nccl/*.cc)
  list(FILTER nccl_sources EXCLUDE REGEX "_test\\.cc$")
  set(nccl_exports ${PROJECT_SOURCE_DIR}/src/capi/nccl/exports.map)
  add_library(nccl SHARED ${nccl_sources})
  target_link_libraries(nccl PRIVATE rw_comm)
  rw_precompile(nccl library)
  set_target_properties(nccl PROPERTIES SOVERSION 2 LINK_DEPENDS ${nccl_exports})
  target_link_options(nccl PRIVATE -Wl,--exclude-libs,ALL -Wl,--version-script=${nccl_exports})
  if(NOT RW_SANITIZE)
    target_link_options(nccl PRIVATE -Wl,--no-undefined)
  endif()
endif()
