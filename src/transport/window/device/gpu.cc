#include "transport/window/device/gpu.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <thread>

#include "core/error.h"

namespace ropewalk::transport::window {
namespace {

constexpr auto kGpuPatience = std::chrono::seconds(10);
constexpr std::size_t kPageBytes = 4096;
// A cache line each, so that writes of one queue's stream do not slow readers of another.
constexpr std::size_t kMarkLineBytes = 64;

}  // namespace

Gpu::Gpu(const CudaApi& cuda, int ordinal) : cuda_(cuda), ordinal_(ordinal) {
  cuda.check(cuda.device_get(&device_, ordinal), "cuDeviceGet");
  cuda.check(cuda.device_uuid(&uuid_, device_), "cuDeviceGetUuid");
  std::array<char, 96> name{};
  const bool named =
      cuda.device_name(name.data(), static_cast<int>(name.size()) - 1, device_) == kCuSuccess;
  name_ = fmt::format("GPU {} ({})", ordinal, named ? name.data() : "unnamed");
  int writes = 0;
  if (cuda.device_attribute(&writes, kCuAttributeWrite64, device_) != kCuSuccess) writes = 0;
  writes_marks_ = writes != 0 && cuda.stream_write64 != nullptr;
  cuda.check(cuda.primary_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
}

Gpu::~Gpu() {
  CuContext popped = nullptr;
  if (cuda_.context_push(context_) == kCuSuccess) {
    for (CuStream stream : streams_) {
      if (stream != nullptr) cuda_.warn(cuda_.stream_destroy(stream), "cuStreamDestroy");
    }
    for (void* page : pages_) cuda_.warn(cuda_.host_free(page), "cuMemFreeHost");
    if (staging_ != nullptr) cuda_.warn(cuda_.host_free(staging_), "cuMemFreeHost");
    if (scratch_ != 0) cuda_.warn(cuda_.free(scratch_), "cuMemFree");
    cuda_.context_pop(&popped);
  }
  cuda_.warn(cuda_.primary_release(device_), "cuDevicePrimaryCtxRelease");
}

CuStream Gpu::stream(std::size_t number) {
  const Lock lock(mutex_);
  CuStream& stream = streams_[number == kStreams ? kStreams : number % kStreams];
  if (stream == nullptr) {
    const CurrentContext current(cuda_, context_);
    int least = 0;
    int greatest = 0;
    cuda_.check(cuda_.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
    cuda_.check(cuda_.stream_create(&stream, kCuStreamNonBlocking, greatest),
                "cuStreamCreateWithPriority");
  }
  return stream;
}

MarkWord Gpu::take_mark() {
  const Lock lock(mutex_);
  if (marks_.empty()) {
    const CurrentContext current(cuda_, context_);
    void* page = nullptr;
    cuda_.check(cuda_.host_allocate(&page, kPageBytes, kCuHostPortable | kCuHostDeviceMap),
                "cuMemHostAlloc");
    pages_.push_back(page);
    std::memset(page, 0, kPageBytes);
    CuPointer device = 0;
    cuda_.check(cuda_.host_pointer(&device, page, 0), "cuMemHostGetDevicePointer");
    for (std::size_t offset = 0; offset < kPageBytes; offset += kMarkLineBytes) {
      auto* word = new (static_cast<std::byte*>(page) + offset) std::atomic<std::uint64_t>(0);
      marks_.push_back({word, device + offset});
    }
  }
  const MarkWord mark = marks_.back();
  marks_.pop_back();
  return mark;
}

void Gpu::give_mark(MarkWord mark) {
  const Lock lock(mutex_);
  marks_.push_back(mark);
}

void Gpu::wait(CuStream stream, const char* what) const {
  const auto deadline = std::chrono::steady_clock::now() + kGpuPatience;
  for (;;) {
    const CuResult result = cuda_.stream_query(stream);
    if (result == kCuSuccess) return;
    if (result != kCuNotReady) cuda_.check(result, what);
    if (std::chrono::steady_clock::now() > deadline) {
      throw Error(Errc::kTimeout, "{} on {} did not end within 10 s", what, name_);
    }
    std::this_thread::yield();
  }
}

std::byte* Gpu::staging() {
  if (staging_ == nullptr) {
    const CurrentContext current(cuda_, context_);
    void* made = nullptr;
    cuda_.check(cuda_.host_allocate(&made, kStagingBytes, kCuHostPortable), "cuMemHostAlloc");
    staging_ = static_cast<std::byte*>(made);
  }
  return staging_;
}

CuPointer Gpu::scratch() {
  if (scratch_ == 0) {
    const CurrentContext current(cuda_, context_);
    cuda_.check(cuda_.allocate(&scratch_, kScratchBytes), "cuMemAlloc");
  }
  return scratch_;
}

void Gpu::warm_up() {
  const Lock lock(staging_mutex_);
  if (warm_) return;
  std::byte* pinned = staging();
  const CuPointer to = scratch();
  const MarkWord mark = writes_marks_ ? take_mark() : MarkWord{};
  const CurrentContext current(cuda_, context_);
  constexpr std::size_t kHalf = kScratchBytes / 2;
  constexpr const char* kWhat = "a first copy";
  for (std::size_t number = 0; number <= kStreams; ++number) {
    const CuStream on = stream(number);
    cuda_.check(cuda_.copy_to_device(to, pinned, kHalf, on), kWhat);
    cuda_.check(cuda_.copy_on_device(to + kHalf, to, kHalf, on), kWhat);
    cuda_.check(cuda_.copy_to_host(pinned, to + kHalf, kHalf, on), kWhat);
    if (writes_marks_) cuda_.check(cuda_.stream_write64(on, mark.device, 0, 0), kWhat);
    wait(on, kWhat);  // the next one writes the same memory
  }
  if (writes_marks_) give_mark(mark);
  warm_ = true;
}

void Gpu::touch(CuPointer source, CuContext context, std::size_t bytes) {
  const Lock lock(staging_mutex_);
  const CuPointer to = scratch();
  const std::size_t some = std::min(bytes, kScratchBytes);
  const CurrentContext current(cuda_, context_);
  constexpr const char* kWhat = "a first copy between GPUs";
  for (std::size_t number = 0; number < kStreams; ++number) {
    const CuStream on = stream(number);
    cuda_.check(context == nullptr ? cuda_.copy_on_device(to, source, some, on)
                                   : cuda_.copy_peer(to, context_, source, context, some, on),
                kWhat);
    wait(on, kWhat);  // as above
  }
}

void Gpu::fetch(void* host, CuPointer source, std::size_t bytes) {
  const Lock lock(staging_mutex_);
  std::byte* pinned = staging();
  for (std::size_t offset = 0; offset < bytes; offset += kStagingBytes) {
    const std::size_t piece = std::min(kStagingBytes, bytes - offset);
    now("copying from a GPU", [&](CuStream stream) {
      return cuda_.copy_to_host(pinned, source + offset, piece, stream);
    });
    std::memcpy(static_cast<std::byte*>(host) + offset, pinned, piece);
  }
}

void Gpu::fill(CuPointer destination, const void* host, std::size_t bytes) {
  const Lock lock(staging_mutex_);
  std::byte* pinned = staging();
  for (std::size_t offset = 0; offset < bytes; offset += kStagingBytes) {
    const std::size_t piece = std::min(kStagingBytes, bytes - offset);
    std::memcpy(pinned, static_cast<const std::byte*>(host) + offset, piece);
    now("copying to a GPU", [&](CuStream stream) {
      return cuda_.copy_to_device(destination + offset, pinned, piece, stream);
    });
  }
}

Gpus::Gpus(const CudaApi& cuda) : cuda_(cuda) {
  int count = 0;
  cuda.check(cuda.device_count(&count), "cuDeviceGetCount");
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CuDevice device = 0;
    CuUuid uuid;
    cuda.check(cuda.device_get(&device, ordinal), "cuDeviceGet");
    cuda.check(cuda.device_uuid(&uuid, device), "cuDeviceGetUuid");
    uuids_.push_back(uuid);
  }
  gpus_.resize(uuids_.size());
}

Gpu& Gpus::at(int ordinal) {
  const auto location = static_cast<std::size_t>(ordinal);
  if (ordinal < 0 || location >= uuids_.size()) {
    throw Error(Errc::kInvalidArgument, "GPU {} of {}", ordinal, uuids_.size());
  }
  const Lock lock(mutex_);
  if (!gpus_[location]) gpus_[location] = std::make_unique<Gpu>(cuda_, ordinal);
  return *gpus_[location];
}

Gpu* Gpus::find(const CuUuid& uuid) {
  const auto found = std::find(uuids_.begin(), uuids_.end(), uuid);
  return found == uuids_.end() ? nullptr : &at(static_cast<int>(found - uuids_.begin()));
}

std::vector<int> Gpus::in_use() const {
  std::vector<int> ordinals;
  for (int ordinal = 0; ordinal < count(); ++ordinal) {
    CuDevice device = 0;
    unsigned flags = 0;
    int active = 0;
    if (cuda_.primary_state != nullptr && cuda_.device_get(&device, ordinal) == kCuSuccess &&
        cuda_.primary_state(device, &flags, &active) == kCuSuccess && active != 0) {
      ordinals.push_back(ordinal);
    }
  }
  return ordinals;
}

Gpu* Gpus::of_stream(CuStream stream) {
  if (cuda_.stream_context == nullptr) return nullptr;
  CuContext context = nullptr;
  cuda_.check(cuda_.stream_context(stream, &context), "cuStreamGetCtx");
  for (const int ordinal : in_use()) {
    if (Gpu& gpu = at(ordinal); gpu.context() == context) return &gpu;
  }
  return nullptr;
}

PinnedBuffer::PinnedBuffer(Gpu& gpu, std::size_t bytes) : gpu_(gpu) {
  const CurrentContext current(gpu.cuda(), gpu.context());
  void* made = nullptr;
  gpu.cuda().check(gpu.cuda().host_allocate(&made, bytes, kCuHostPortable), "cuMemHostAlloc");
  data_ = static_cast<std::byte*>(made);
}

PinnedBuffer::~PinnedBuffer() {
  try {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().warn(gpu_.cuda().host_free(data_), "cuMemFreeHost");
  } catch (const Error&) {
    // CUDA has ended before this did, and the memory with it.
  }
}

DeviceBuffer::DeviceBuffer(Gpu& gpu, std::size_t bytes, From from) : gpu_(gpu), from_(from) {
  const CudaApi& cuda = gpu.cuda();
  const CurrentContext current(cuda, gpu.context());
  if (from == From::kAllocator) {
    cuda.check(cuda.allocate(&data_, bytes), "cuMemAlloc");
    return;
  }
  if (!cuda.has_virtual_memory()) throw Error(Errc::kCuda, "{}", "no virtual-memory management");
  CuAllocationProperties properties;
  properties.type = kCuAllocationPinned;
  properties.handle_types = kCuHandleFileDescriptor;
  properties.location = {kCuLocationDevice, gpu.ordinal()};
  int rdma = 0;
  if (cuda.device_attribute(&rdma, kCuAttributeVirtualRdma, gpu.device()) == kCuSuccess &&
      rdma != 0) {
    properties.rdma_capable = 1;
  }
  std::size_t granularity = 0;
  cuda.check(cuda.granularity(&granularity, &properties, kCuGranularityMinimum),
             "cuMemGetAllocationGranularity");
  const std::size_t size = (bytes + granularity - 1) / granularity * granularity;
  CuAllocation allocation = 0;
  cuda.check(cuda.create_allocation(&allocation, size, &properties, 0), "cuMemCreate");
  CuResult result = cuda.reserve_addresses(&data_, size, 0, 0, 0);
  if (result == kCuSuccess) {
    reserved_ = size;
    result = cuda.map(data_, size, 0, allocation, 0);
    mapped_ = result == kCuSuccess;
  }
  if (result == kCuSuccess) {
    const CuAccess access{properties.location, kCuAccessReadWrite};
    result = cuda.set_access(data_, size, &access, 1);
  }
  // The mapping keeps the memory; the handle has done its work.
  cuda.release_allocation(allocation);
  if (result != kCuSuccess) {
    if (mapped_) cuda.unmap(data_, size);
    if (reserved_ != 0) cuda.free_addresses(data_, size);
    cuda.check(result, "mapping device memory");
  }
}

DeviceBuffer::~DeviceBuffer() {
  const CudaApi& cuda = gpu_.cuda();
  try {
    const CurrentContext current(cuda, gpu_.context());
    if (from_ == From::kAllocator) {
      cuda.warn(cuda.free(data_), "cuMemFree");
    } else {
      cuda.warn(cuda.unmap(data_, reserved_), "cuMemUnmap");
      cuda.warn(cuda.free_addresses(data_, reserved_), "cuMemAddressFree");
    }
  } catch (const Error&) {
    // CUDA has ended before this did, and the memory with it.
  }
}

}  // namespace ropewalk::transport::window
