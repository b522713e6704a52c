# The transport `psm2` needs libpsm2 only when it is used; its interface is declared in the sources. libpsm2 is for
# x86-64 alone. Its tests are built where the library is (dev/setup psm2).
option(RW_PSM2 "Build the transport over libpsm2" ON)
set(RW_HAVE_PSM2 OFF)
set(RW_TEST_PSM2 OFF)
if(RW_PSM2 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(RW_HAVE_PSM2 ON)
  find_library(RW_PSM2_LIBRARY NAMES libpsm2.so.2)
  if(RW_PSM2_LIBRARY)
    set(RW_TEST_PSM2 ON)
  else()
    message(STATUS "No libpsm2: without the tests of the transport psm2")
  endif()
endif()
