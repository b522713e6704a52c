# The transport `ofi` needs libfabric's headers to be compiled, and its library only when it is used.
# Headers of any release serve, whichever release is found at run time.
option(RW_OFI "Build the transport over libfabric, if its headers are found" ON)
set(RW_HAVE_OFI OFF)
if(RW_OFI)
  find_path(RW_OFI_INCLUDE rdma/fi_tagged.h)
  if(RW_OFI_INCLUDE)
    set(RW_HAVE_OFI ON)
  else()
    message(STATUS "No headers of libfabric (libfabric-dev): without the transport ofi")
  endif()
endif()
