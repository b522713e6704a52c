# CUDA: RW_CUDA says whether to use it. The runtime is linked statically and looks for the
# driver at its first use, so the library loads on machines without a driver.
set(RW_CUDA AUTO CACHE STRING "Build for GPUs: AUTO (if nvcc is found), ON or OFF")
# The kernels take longer to compile than all other code, so a library for this machine alone has none without
# a GPU (a device file of the driver or of WSL).
set(cuda ${RW_CUDA})
file(GLOB gpus /dev/nvidia[0-9]* /dev/dxg)
if(RW_LIBRARY_ONLY AND RW_CUDA STREQUAL "AUTO" AND NOT gpus)
  set(cuda OFF)
endif()
if(NOT CMAKE_CUDA_ARCHITECTURES AND NOT DEFINED ENV{CUDAARCHS})
  # 90 without a suffix: code for sm_90, and PTX for later architectures.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90")
endif()
set(RW_HAVE_CUDA FALSE)
if(NOT cuda STREQUAL "OFF")
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    # CMake before 3.26 does not know nvcc's option for C++20.
    set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION "-std=c++20")
    set(CMAKE_CUDA_RUNTIME_LIBRARY None)  # named where it is linked
    enable_language(CUDA)
    # Folders that the host compiler searches anyway must not be named: that would change the order.
    list(APPEND CMAKE_CUDA_IMPLICIT_INCLUDE_DIRECTORIES ${CMAKE_CXX_IMPLICIT_INCLUDE_DIRECTORIES})
    # FindCUDAToolkit asks for libcudart.so, which the packages on PyPI have under its full name only.
    get_filename_component(toolkit ${CMAKE_CUDA_COMPILER}/../.. ABSOLUTE)
    file(GLOB shared_runtime ${toolkit}/lib/libcudart.so.*)
    if(shared_runtime AND NOT EXISTS ${toolkit}/lib/libcudart.so)
      list(GET shared_runtime 0 shared_runtime)
      set(CUDA_CUDART ${shared_runtime} CACHE FILEPATH "The shared CUDA runtime, which is not linked")
    endif()
    find_package(CUDAToolkit)
    if(TARGET CUDA::cudart_static)
      set(RW_HAVE_CUDA TRUE)
      foreach(folder IN LISTS CUDAToolkit_INCLUDE_DIRS)
        list(APPEND RW_CUDA_HEADERS "-isystem${folder}")
      endforeach()
    endif()
  endif()
  if(RW_CUDA STREQUAL "ON" AND NOT RW_HAVE_CUDA)
    message(FATAL_ERROR "RW_CUDA is ON, but nvcc with the static CUDA runtime was not found")
  endif()
endif()
message(STATUS "CUDA: ${RW_HAVE_CUDA}")
