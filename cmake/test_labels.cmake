# Labels of unit tests, by which `make asan` and `make tsan` leave tests out (dev/run-sanitized). Each has its
# reason beside it, and .ci/run tells both. There is no other list of exceptions.
#
# slow:             takes a sanitizer minutes that other tests of the same code do not need
# sanitizer-blind:  what it is about, the sanitizer of this build does not see
#
# rw_label_tests(LABEL PROGRAM REGEX REASON [SANITIZER name]): tests of PROGRAM whose name in ctest REGEX
# matches; with SANITIZER in builds by that one alone (address or thread).
# rw_discover_tests(TARGET property...): gtest_discover_tests, and the labels.
set(rw_labels_file ${PROJECT_BINARY_DIR}/test_labels.txt)
file(WRITE ${rw_labels_file} "")

function(rw_label_tests label program regex reason)
  cmake_parse_arguments(WHERE "" "SANITIZER" "" ${ARGN})
  if(WHERE_SANITIZER AND NOT RW_SANITIZE MATCHES "${WHERE_SANITIZER}")
    return()
  endif()
  file(APPEND ${rw_labels_file} "${label}\t${program}\t${regex}\t${reason}\n")
  set_property(GLOBAL APPEND_STRING PROPERTY rw_labels_${program} "  if(test MATCHES [==[${regex}]==])
    list(APPEND labels ${label})
  endif()
")
endfunction()

function(rw_discover_tests target)
  gtest_discover_tests(${target} DISCOVERY_TIMEOUT 60 PROPERTIES ${ARGN})
  get_property(labels GLOBAL PROPERTY rw_labels_${target})
  if(labels)
    # Read by ctest after the tests that the program has named.
    set(file ${CMAKE_CURRENT_BINARY_DIR}/${target}_labels.cmake)
    file(WRITE ${file} "foreach(test IN LISTS ${target}_TESTS)
  set(labels)
${labels}  if(labels)
    set_tests_properties(\"\${test}\" PROPERTIES LABELS \"\${labels}\")
  endif()
endforeach()
")
    set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
  endif()
endfunction()
