#include "message/device_part.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <utility>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/window/device/gpu_memory.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::message {
namespace {

namespace gpus = transport::window;
using gpus::CudaApi;
using gpus::CuPointer;
using gpus::CurrentContext;
using gpus::Gpu;

constexpr std::size_t kAlign = 256;
// CUDA puts smaller allocations into common blocks, and a handle opens the whole block.
constexpr std::size_t kShareable = std::size_t{2} << 20;

// The driver's functions that set memory are no part of CudaApi: zeros are copied, each time as
// many as there are.
void zero(Gpu& gpu, CuPointer address, std::size_t bytes) {
  static constexpr std::array<std::byte, 64 << 10> kZeros{};
  std::size_t done = std::min(kZeros.size(), bytes);
  gpu.fill(address, kZeros.data(), done);
  while (done < bytes) {
    const std::size_t more = std::min(done, bytes - done);
    gpu.now("zeroing a window", [&](gpus::CuStream stream) {
      return gpu.cuda().copy_on_device(address + done, address, more, stream);
    });
    done += more;
  }
}

// Copies that a program believes to be over could overlap with what peers write.
void set_sync(const CudaApi& cuda, CuPointer address) {
  const unsigned on = 1;
  if (cuda.set_pointer_attribute != nullptr) {
    (void)cuda.set_pointer_attribute(&on, gpus::kCuPointerSyncMemops, address);
  }
}

DeviceOffer::Range range_of(const Gpu& gpu, CuPointer address, bool of_pages) {
  DeviceOffer::Range range;
  range.address = address;
  range.of_pages = of_pages ? 1 : 0;
  if (of_pages) return range;
  try {
    const CuPointer base = gpus::allocation_of(gpu, address).base;
    range.handle = gpus::ipc_handle_of(gpu, base);
    range.offset = address - base;
    range.shareable = 1;
  } catch (const Error&) {
    // Other processes are told so when they ask for the memory.
  }
  return range;
}

DeviceOffer::Range range_of_user(Gpu& gpu, void* memory) {
  const auto address = reinterpret_cast<CuPointer>(memory);
  bool of_pages = false;
  {
    const gpus::RetainedAllocation retained(gpu.cuda(), address);
    of_pages = retained.held();
  }
  set_sync(gpu.cuda(), address);
  return range_of(gpu, address, of_pages);
}

struct Published {
  Mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<DevicePart>> parts RW_GUARDED_BY(mutex);
};

Published& published_parts() {
  static auto* parts = new Published;  // used by threads that outlive main()
  return *parts;
}

}  // namespace

bool is_known(const CudaApi& cuda, const void* address) noexcept {
  unsigned type = 0;
  return cuda.pointer_attribute(&type, gpus::kCuPointerMemoryType,
                                reinterpret_cast<CuPointer>(address)) == gpus::kCuSuccess;
}

bool is_of(const Gpu& gpu, const void* address) noexcept {
  if (!is_on_gpu(gpu.cuda(), address)) return true;
  int ordinal = -1;
  return gpu.cuda().pointer_attribute(&ordinal, gpus::kCuPointerOrdinal,
                                      reinterpret_cast<CuPointer>(address)) == gpus::kCuSuccess &&
         ordinal == gpu.ordinal();
}

bool is_on_gpu(const CudaApi& cuda, const void* address) noexcept {
  unsigned type = 0;
  return address != nullptr &&
         cuda.pointer_attribute(&type, gpus::kCuPointerMemoryType,
                                reinterpret_cast<CuPointer>(address)) == gpus::kCuSuccess &&
         type == gpus::kCuMemoryIsDevice;
}

DevicePart::DevicePart(Gpu& gpu, const WindowSpec& spec, std::size_t counters_bytes) : gpu_(gpu) {
  gpu.warm_up();  // copies of the links, which kernels may wait for
  const CudaApi& cuda = gpu.cuda();
  const CurrentContext current(cuda, gpu.context());
  const bool of_user = spec.registers && spec.memory != nullptr;
  const std::size_t counters = (counters_bytes + kAlign - 1) / kAlign * kAlign;
  const std::size_t bytes = counters + (of_user ? 0 : spec.bytes);
  static std::atomic<std::uint64_t> last_number{0};
  offer_.number = ++last_number;
  offer_.gpu = gpu.uuid();
  if (bytes == 0) {
    if (of_user) offer_.data = range_of_user(gpu, spec.memory);
    return;
  }
  cuda.check(cuda.allocate(&memory_, (bytes + kShareable - 1) / kShareable * kShareable),
             "cuMemAlloc");
  try {
    zero(gpu, memory_, bytes);
    set_sync(cuda, memory_);
    offer_.counters = range_of(gpu, memory_, false);
    if (!of_user) {
      offer_.data = offer_.counters;
      offer_.data.address += counters;
      offer_.data.offset += counters;
      return;
    }
    offer_.data = range_of_user(gpu, spec.memory);
  } catch (const Error&) {
    cuda.warn(cuda.free(memory_), "cuMemFree");
    throw;
  }
}

DevicePart::~DevicePart() {
  if (memory_ == 0) return;
  try {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().warn(gpu_.cuda().free(memory_), "cuMemFree");
  } catch (const Error&) {
    // CUDA has ended before this did, and the memory with it.
  }
}

std::uint64_t ReachedPart::open(const Gpu& gpu, int rank, const DeviceOffer::Range& range,
                                gpus::IpcMemory& opened) {
  if (range.address == 0) return 0;
  if (range.shareable == 0) {
    throw Error(Errc::kCuda, "{}",
                "the memory has no handle for other processes: it is not from cudaMalloc");
  }
  opened = gpus::IpcMemory(gpu, range.handle, fmt::format("rank {}", rank));
  return opened.base() + range.offset;
}

ReachedPart::ReachedPart(gpus::Gpus& all, Gpu& gpu, int rank, const DeviceOffer& offer,
                         std::shared_ptr<DevicePart> own)
    : own_(std::move(own)) {
  const CudaApi& cuda = gpu.cuda();
  if (own_ == nullptr) {
    counters_ = open(gpu, rank, offer.counters, opened_counters_);
    data_ = open(gpu, rank, offer.data, opened_data_);
    return;
  }
  counters_ = offer.counters.address;
  data_ = offer.data.address;
  Gpu* owner = all.find(offer.gpu);
  if (owner == &gpu) return;
  if (owner == nullptr) throw Error(Errc::kCuda, "{}", "its GPU is not known to this process");
  if (offer.data.of_pages != 0) {
    throw Error(Errc::kCuda, "{}", "peer access does not cover virtual memory of another GPU");
  }
  const CurrentContext current(cuda, gpu.context());
  const gpus::CuResult result = cuda.enable_peer(owner->context(), 0);
  if (result != gpus::kCuPeerAccessAlreadyEnabled) cuda.check(result, "cuCtxEnablePeerAccess");
}

void publish(const std::shared_ptr<DevicePart>& part) {
  Published& its = published_parts();
  const Lock lock(its.mutex);
  std::erase_if(its.parts, [](const auto& entry) { return entry.second.expired(); });
  its.parts[part->offer().number] = part;
}

std::shared_ptr<DevicePart> published(std::uint64_t number) {
  Published& its = published_parts();
  const Lock lock(its.mutex);
  const auto found = its.parts.find(number);
  return found == its.parts.end() ? nullptr : found->second.lock();
}

}  // namespace ropewalk::message
