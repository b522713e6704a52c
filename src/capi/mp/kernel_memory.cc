#include "capi/mp/kernel_memory.h"

#include <dlfcn.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <string>

#include "capi/mp/failure.h"
#include "capi/mp/memory_kind.h"
#include "ropewalk/compat/mp.h"

namespace ropewalk::mp {
namespace {

constexpr std::size_t kPage = 4096;
constexpr unsigned kPortableAndMapped = 1U | 2U;  // CU_MEMHOSTALLOC_..., CU_MEMHOSTREGISTER_...

// As cuda.h declares them. Addresses of the device are 64-bit numbers, results are int.
struct Driver {
  int (*retain_context)(void**, int) = nullptr;
  int (*release_context)(int) = nullptr;
  int (*push_context)(void*) = nullptr;
  int (*pop_context)(void**) = nullptr;
  int (*allocate)(void**, std::size_t, unsigned) = nullptr;
  int (*free)(void*) = nullptr;
  int (*register_memory)(void*, std::size_t, unsigned) = nullptr;
  int (*deregister_memory)(void*) = nullptr;
  int (*device_address)(std::uint64_t*, void*, unsigned) = nullptr;
  bool whole = true;

  Driver() {
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    find(library, retain_context, "cuDevicePrimaryCtxRetain");
    find(library, release_context, "cuDevicePrimaryCtxRelease_v2");
    find(library, push_context, "cuCtxPushCurrent_v2");
    find(library, pop_context, "cuCtxPopCurrent_v2");
    find(library, allocate, "cuMemHostAlloc");
    find(library, free, "cuMemFreeHost");
    find(library, register_memory, "cuMemHostRegister_v2");
    find(library, deregister_memory, "cuMemHostUnregister");
    find(library, device_address, "cuMemHostGetDevicePointer_v2");
  }

  template <typename Function>
  void find(void* library, Function& function, const char* name) {
    if (library != nullptr) function = reinterpret_cast<Function>(dlsym(library, name));
    whole &= function != nullptr;
  }
};

const Driver& driver() {
  static const Driver one;
  return one;
}

void check_driver(int result, const char* call) {
  if (result == 0) return;
  throw Failure(MP_FAILURE, std::string(call) + ": CUDA's error " + std::to_string(result));
}

// The GPU's primary context is the thread's meanwhile, which may have another one, or none.
class CurrentContext {
 public:
  explicit CurrentContext(int gpu) : gpu_(gpu) {
    if (!driver().whole) throw Failure(MP_FAILURE, "CUDA's driver lacks a function");
    void* context = nullptr;
    check_driver(driver().retain_context(&context, gpu), "cuDevicePrimaryCtxRetain");
    const int result = driver().push_context(context);
    if (result != 0) (void)driver().release_context(gpu);
    check_driver(result, "cuCtxPushCurrent");
  }
  ~CurrentContext() {
    void* popped = nullptr;
    (void)driver().pop_context(&popped);
    (void)driver().release_context(gpu_);
  }
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  int gpu_;
};

}  // namespace

KernelMemory::~KernelMemory() {
  if (allocated_.empty() && registered_.empty()) return;
  if (gpu_ < 0) {
    for (void* const memory : allocated_) std::free(memory);
    return;
  }
  try {
    const CurrentContext current(gpu_);
    for (void* const memory : allocated_) (void)driver().free(memory);
    for (void* const page : registered_) (void)driver().deregister_memory(page);
  } catch (const Failure&) {
    // The context is gone, and its memory with it.
  }
}

void* KernelMemory::allocate(std::size_t bytes) {
  require(bytes > 0 && bytes <= SIZE_MAX - kPage, "bytes: none, or too many");
  allocated_.reserve(allocated_.size() + 1);
  void* made = nullptr;
  if (gpu_ < 0) {
    made = std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage);
    if (made == nullptr) throw std::bad_alloc();
  } else {
    const CurrentContext current(gpu_);
    check_driver(driver().allocate(&made, bytes, kPortableAndMapped), "cuMemHostAlloc");
  }
  allocated_.push_back(made);
  return std::memset(made, 0, bytes);
}

std::uint32_t* KernelMemory::reach(std::uint32_t* word) {
  if (gpu_ < 0 || is_on_gpu(word)) return word;
  const CurrentContext current(gpu_);
  std::uint64_t address = 0;
  if (driver().device_address(&address, word, 0) != 0) {
    registered_.reserve(registered_.size() + 1);
    auto* const page =
        reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(word) / kPage * kPage);
    check_driver(driver().register_memory(page, kPage, kPortableAndMapped), "cuMemHostRegister");
    registered_.push_back(page);
    check_driver(driver().device_address(&address, word, 0), "cuMemHostGetDevicePointer");
  }
  return reinterpret_cast<std::uint32_t*>(address);
}

}  // namespace ropewalk::mp
