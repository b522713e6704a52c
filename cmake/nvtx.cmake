# Ranges for NVIDIA's tools need the headers of NVTX 3 to be compiled (CUDA's toolkit has them); the tool
# brings the library at run time.
option(RW_NVTX "Build the ranges of NVTX, if its headers are found" ON)
set(RW_HAVE_NVTX OFF)
if(RW_NVTX)
  find_path(RW_NVTX_INCLUDE nvtx3/nvToolsExt.h HINTS ${CUDAToolkit_INCLUDE_DIRS}
    /usr/local/cuda/include /usr/local/cuda/targets/x86_64-linux/include)
  if(RW_NVTX_INCLUDE)
    set(RW_HAVE_NVTX ON)
    # For this source alone, so that no other one sees CUDA's headers.
    set_source_files_properties(${PROJECT_SOURCE_DIR}/src/core/nvtx.cc PROPERTIES
      COMPILE_OPTIONS "-DRW_HAVE_NVTX;-isystem${RW_NVTX_INCLUDE}"
      SKIP_UNITY_BUILD_INCLUSION ON SKIP_PRECOMPILE_HEADERS ON)
  else()
    message(STATUS "No headers of NVTX 3 (CUDA's toolkit): without its ranges")
  endif()
endif()
