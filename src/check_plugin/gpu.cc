#include "check_plugin/gpu.h"

#include <dlfcn.h>

#include <cstdint>

#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

// As the CUDA driver API documents them: CUresult and CUdevice are int, CUdeviceptr is 64 bits.
using Address = std::uint64_t;

struct Driver {
  int (*init)(unsigned flags) = nullptr;
  int (*device_count)(int* count) = nullptr;
  int (*device)(int* device, int number) = nullptr;
  int (*retain_context)(void** context, int device) = nullptr;
  int (*set_context)(void* context) = nullptr;
  int (*allocate)(Address* memory, std::size_t bytes) = nullptr;
  int (*free)(Address memory) = nullptr;
  int (*to_gpu)(Address to, const void* from, std::size_t bytes) = nullptr;
  int (*to_host)(void* to, Address from, std::size_t bytes) = nullptr;
  int (*synchronize)() = nullptr;
  int count = 0;
  std::string why_none;
};

void check(int result, const char* tried) {
  if (result != 0) throw Error(Errc::kCuda, "{}: CUDA error {}", tried, result);
}

Driver open_driver() {
  Driver driver;
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) {
    driver.why_none = "no GPU: libcuda.so.1 is not here";
    return driver;
  }
  bool complete = true;
  const auto find = [&](auto& function, const char* symbol) {
    function =
        reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, symbol));
    complete = complete && function != nullptr;
  };
  find(driver.init, "cuInit");
  find(driver.device_count, "cuDeviceGetCount");
  find(driver.device, "cuDeviceGet");
  find(driver.retain_context, "cuDevicePrimaryCtxRetain");
  find(driver.set_context, "cuCtxSetCurrent");
  find(driver.allocate, "cuMemAlloc_v2");
  find(driver.free, "cuMemFree_v2");
  find(driver.to_gpu, "cuMemcpyHtoD_v2");
  find(driver.to_host, "cuMemcpyDtoH_v2");
  find(driver.synchronize, "cuCtxSynchronize");
  if (!complete) {
    driver.why_none = "no GPU: libcuda.so.1 lacks functions";
  } else if (const int result = driver.init(0); result != 0) {
    driver.why_none = "no GPU: cuInit says error " + std::to_string(result);
  } else if (driver.device_count(&driver.count) != 0 || driver.count == 0) {
    driver.why_none = "no GPU";
  }
  return driver;
}

const Driver& driver() {
  static const Driver kOpened = open_driver();
  return kOpened;
}

Address address(const void* memory) { return reinterpret_cast<std::uintptr_t>(memory); }

}  // namespace

const std::string& Gpus::why_none() { return driver().why_none; }
int Gpus::count() { return driver().count; }

void Gpus::use(int gpu) {
  int device = 0;
  void* context = nullptr;
  check(driver().device(&device, gpu), "cuDeviceGet");
  check(driver().retain_context(&context, device), "cuDevicePrimaryCtxRetain");
  check(driver().set_context(context), "cuCtxSetCurrent");
}

void* Gpus::allocate(std::size_t bytes) {
  Address memory = 0;
  check(driver().allocate(&memory, bytes), "cuMemAlloc");
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(memory));
}

void Gpus::free(void* memory) { driver().free(address(memory)); }

void Gpus::to_gpu(void* to, const void* from, std::size_t bytes) {
  check(driver().to_gpu(address(to), from, bytes), "cuMemcpyHtoD");
  check(driver().synchronize(), "cuCtxSynchronize");
}

void Gpus::to_host(void* to, const void* from, std::size_t bytes) {
  check(driver().to_host(to, address(from), bytes), "cuMemcpyDtoH");
}

}  // namespace ropewalk::check_plugin
