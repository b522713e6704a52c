# The transport `psm2` needs libpsm2 only when it is used; its interface is declared in the sources. libpsm2 is for
# x86-64 alone.
option(RW_PSM2 "Build the transport over libpsm2" ON)
set(RW_HAVE_PSM2 OFF)
if(RW_PSM2 AND CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(RW_HAVE_PSM2 ON)
endif()
