#include "transport/window/device/ipc_memory.h"

#include <array>
#include <cstddef>
#include <map>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk::transport::window {
namespace {

// What this process has open, with its users.
class OpenedHandles {
 public:
  static OpenedHandles& of_process() {
    static auto* handles = new OpenedHandles;  // used by threads that outlive main()
    return *handles;
  }

  CuPointer open(const Gpu& gpu, const CuIpcHandle& handle, const std::string& whose) {
    const CudaApi& cuda = gpu.cuda();
    const Key key = key_of(gpu, handle);
    Entry& entry = hold(key);
    try {
      const Lock lock(entry.mutex);
      if (entry.users == 0) {
        const CurrentContext current(cuda, gpu.context());
        const std::string tried =
            fmt::format("cuIpcOpenMemHandle (memory of {}, on {})", whose, gpu.name());
        cuda.check(cuda.ipc_open(&entry.base, handle, kCuIpcLazyPeerAccess), tried.c_str());
      }
      ++entry.users;
      return entry.base;
    } catch (...) {
      release(key);
      throw;
    }
  }

  void close(const Gpu& gpu, const CuIpcHandle& handle, const std::string& whose) noexcept {
    const CudaApi& cuda = gpu.cuda();
    const Key key = key_of(gpu, handle);
    Entry& entry = hold(key);
    {
      const Lock lock(entry.mutex);
      if (--entry.users == 0) {
        try {
          const CurrentContext current(cuda, gpu.context());
          const std::string tried =
              fmt::format("cuIpcCloseMemHandle (memory of {}, on {})", whose, gpu.name());
          cuda.warn(cuda.ipc_close(entry.base), tried.c_str());
        } catch (const Error&) {
          // CUDA has ended before this did, and its mappings with it.
        }
      }
    }
    release(key);
    release(key);  // what open() holds
  }

 private:
  // The driver, since another one does not know what this one has opened; the GPU, whose primary
  // context all users share; the handle.
  using Key = std::tuple<const void*, int, std::array<unsigned char, 64>>;
  static Key key_of(const Gpu& gpu, const CuIpcHandle& handle) {
    return {reinterpret_cast<const void*>(gpu.cuda().ipc_open), gpu.ordinal(), handle.bytes};
  }
  // Its mutex is held while CUDA opens or closes it, the table's is not: closing may wait for
  // kernels, which may wait for a thread that opens or closes something else.
  struct Entry {
    std::size_t holders = 0;  // guarded by the table's mutex
    Mutex mutex;
    CuPointer base RW_GUARDED_BY(mutex) = 0;
    std::size_t users RW_GUARDED_BY(mutex) = 0;
  };

  Entry& hold(const Key& key) {
    const Lock lock(mutex_);
    Entry& entry = entries_[key];
    ++entry.holders;
    return entry;
  }
  void release(const Key& key) {
    const Lock lock(mutex_);
    const auto found = entries_.find(key);
    if (--found->second.holders == 0) entries_.erase(found);
  }

  Mutex mutex_;
  std::map<Key, Entry> entries_ RW_GUARDED_BY(mutex_);
};

}  // namespace

bool is_ipc_capable(const CudaApi& cuda, const void* memory) noexcept {
  int capable = 0;
  return cuda.pointer_attribute(&capable, kCuPointerIpcCapable,
                                reinterpret_cast<CuPointer>(memory)) == kCuSuccess &&
         capable != 0;
}

Allocation allocation_of(const Gpu& gpu, CuPointer address) {
  const CurrentContext current(gpu.cuda(), gpu.context());
  Allocation found;
  const CuResult result = gpu.cuda().address_range(&found.base, &found.bytes, address);
  if (result != kCuSuccess) {
    throw Error(Errc::kCuda, "cuMemGetAddressRange of {:#x}: {}", address,
                gpu.cuda().words(result));
  }
  return found;
}

CuIpcHandle ipc_handle_of(const Gpu& gpu, CuPointer base) {
  const CurrentContext current(gpu.cuda(), gpu.context());
  CuIpcHandle handle;
  gpu.cuda().check(gpu.cuda().ipc_export(&handle, base), "cuIpcGetMemHandle");
  return handle;
}

IpcMemory::IpcMemory(const Gpu& gpu, const CuIpcHandle& handle, std::string whose)
    : gpu_(&gpu),
      handle_(handle),
      whose_(std::move(whose)),
      base_(OpenedHandles::of_process().open(gpu, handle_, whose_)) {}

IpcMemory::~IpcMemory() { close(); }

IpcMemory::IpcMemory(IpcMemory&& other) noexcept
    : gpu_(std::exchange(other.gpu_, nullptr)),
      handle_(other.handle_),
      whose_(std::move(other.whose_)),
      base_(std::exchange(other.base_, 0)) {}

IpcMemory& IpcMemory::operator=(IpcMemory&& other) noexcept {
  if (this == &other) return *this;
  close();
  gpu_ = std::exchange(other.gpu_, nullptr);
  handle_ = other.handle_;
  whose_ = std::move(other.whose_);
  base_ = std::exchange(other.base_, 0);
  return *this;
}

void IpcMemory::close() noexcept {
  if (gpu_ == nullptr) return;
  OpenedHandles::of_process().close(*gpu_, handle_, whose_);
  gpu_ = nullptr;
  base_ = 0;
}

}  // namespace ropewalk::transport::window
