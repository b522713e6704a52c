#include "capi/mp/memory_kind.h"

#include <dlfcn.h>

#include <cstdint>

namespace ropewalk::mp {
namespace {

// cuda.h: CUresult cuPointerGetAttribute(void*, CUpointer_attribute, CUdeviceptr)
using GetAttribute = int (*)(void*, int, std::uint64_t);
constexpr int kMemoryType = 2;   // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
constexpr unsigned kDevice = 2;  // CU_MEMORYTYPE_DEVICE

GetAttribute load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library == nullptr
             ? nullptr
             : reinterpret_cast<GetAttribute>(dlsym(library, "cuPointerGetAttribute"));
}

}  // namespace

bool is_on_gpu(const void* address) {
  static const GetAttribute get = load();
  unsigned type = 0;
  return get != nullptr && address != nullptr &&
         get(&type, kMemoryType, reinterpret_cast<std::uint64_t>(address)) == 0 && type == kDevice;
}

}  // namespace ropewalk::mp
