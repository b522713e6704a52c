#include "gpu.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "core/error.h"
#include "library.h"

namespace software_sisci {
namespace {

using namespace ropewalk::transport::window;  // NOLINT(google-build-using-namespace)
using ropewalk::Error;
using ropewalk::FileDescriptor;

constexpr auto kSettleTime = std::chrono::seconds(2);

template <typename Body>
bool succeeds(const Body& body) {
  try {
    body();
    return true;
  } catch (const Error& error) {
    std::fprintf(stderr, "software SISCI: %s\n", error.what());
    return false;
  }
}

template <typename Body>
auto or_failure(sci_error_t code, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    std::fprintf(stderr, "software SISCI: %s\n", error.what());
    throw Failure{code};
  }
}

// A descriptor of another process.
FileDescriptor descriptor_of(pid_t process, int number) {
  const FileDescriptor there(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_getfd, there.get(), number, 0)));
}

template <typename Condition>
void wait_a_while(Condition condition) {
  const Clock::time_point end = Clock::now() + kSettleTime;
  while (!condition() && Clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

}  // namespace

bool GpuView::read(std::size_t offset, std::byte* host, std::size_t bytes) const {
  return succeeds([&] { gpu_.fetch(host, data_ + offset, bytes); });
}

bool GpuView::write(std::size_t offset, const std::byte* host, std::size_t bytes) const {
  return succeeds([&] { gpu_.fill(data_ + offset, host, bytes); });
}

GpuMemory::GpuMemory(const std::string& library, Fabric& fabric)
    : fabric_(fabric), cuda_(library, std::chrono::nanoseconds(0)) {
  const Fabric::Lock lock(fabric_);
  fabric_.state().processes[fabric_.process()].gpu = true;
}

// The worker closes opened memory, so it must still exist.
GpuMemory::~GpuMemory() { openings_.clear(); }

std::shared_ptr<const GpuView> GpuMemory::attach(void* address, std::size_t bytes,
                                                 GpuShare& share) {
  return or_failure(SCI_ERR_ILLEGAL_ADDRESS, [&] {
    auto memory = std::make_shared<DeviceMemory>(describe(cuda_.gpus, 0, address, bytes));
    if (memory->segments.size() != 1) throw Failure{SCI_ERR_ILLEGAL_ADDRESS};
    memory->gpu->warm_up();  // first copies are made now
    const Segment& segment = memory->segments.front();
    share.shared = memory->why_not_offered.empty();
    share.virtual_memory = memory->virtual_memory;
    std::memcpy(share.gpu.data(), memory->gpu->uuid().bytes.data(), share.gpu.size());
    std::memcpy(share.handle.data(), segment.handle.bytes.data(), share.handle.size());
    share.descriptor = segment.descriptor.get();
    share.allocation_bytes = segment.bytes;
    share.offset = memory->data - segment.base;
    share.address = memory->data;
    share.bytes = bytes;
    Gpu& gpu = *memory->gpu;
    const CuPointer data = memory->data;
    return std::make_shared<const GpuView>(gpu, data, std::move(memory));
  });
}

std::shared_ptr<Opening> GpuMemory::open(Key key, pid_t owner, const GpuShare& share) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Opening>& known = openings_[key];
  if (known) return known;
  auto offer = std::make_shared<OfferedMemory>();
  std::memcpy(offer->gpu.bytes.data(), share.gpu.data(), share.gpu.size());
  offer->virtual_memory = share.virtual_memory;
  offer->address = share.address;
  offer->offset = share.offset;
  offer->bytes = share.bytes;
  offer->num_segments = 1;
  offer->constant = true;  // so that first copies out of it are made now
  Segment segment;
  segment.bytes = share.allocation_bytes;
  std::memcpy(segment.handle.bytes.data(), share.handle.data(), share.handle.size());
  if (share.virtual_memory && owner != getpid()) {
    segment.descriptor = descriptor_of(owner, share.descriptor);
  }
  offer->segments.push_back(std::move(segment));
  Gpu* gpu = cuda_.gpus.find(offer->gpu);
  if (gpu == nullptr) gpu = &cuda_.gpus.at(0);
  known = start_opening(worker_, cuda_.gpus, *gpu, std::move(offer), false);
  return known;
}

std::shared_ptr<const GpuView> GpuMemory::connect(std::size_t segment, std::uint64_t generation,
                                                  pid_t owner, const GpuShare& share) {
  return or_failure(SCI_ERR_CONNECTION_REFUSED, [&] {
    CuUuid uuid;
    std::memcpy(uuid.bytes.data(), share.gpu.data(), share.gpu.size());
    Gpu* gpu = cuda_.gpus.find(uuid);
    if (owner == getpid()) return std::make_shared<const GpuView>(*gpu, share.address, nullptr);
    if (!share.shared) throw Failure{SCI_ERR_CONNECTION_REFUSED};
    const std::shared_ptr<Opening> opening = open({segment, generation}, owner, share);
    wait_a_while([&] { return opening->finished.load(std::memory_order_acquire); });
    if (!opening->finished.load(std::memory_order_acquire)) throw Failure{SCI_ERR_TIMEOUT};
    if (!opening->memory) throw Error(ropewalk::Errc::kCuda, "{}", opening->why_not);
    if (gpu == nullptr) gpu = &cuda_.gpus.at(0);
    return std::make_shared<const GpuView>(*gpu, opening->memory->data(), opening->memory);
  });
}

void GpuMemory::survey() {
  struct Found {
    Key key;
    pid_t owner;
    GpuShare share;
  };
  std::vector<Found> found;
  {
    const Fabric::Lock lock(fabric_);
    State& state = fabric_.state();
    for (std::size_t i = 0; i < state.segments_end; ++i) {
      const SegmentEntry& entry = state.segments[i];
      if (entry.generation % 2 == 0 || entry.backing != Backing::kGpu ||
          entry.process == fabric_.process() || !entry.gpu.shared || !entry.ready) {
        continue;
      }
      found.push_back({{i, entry.generation}, state.processes[entry.process].pid, entry.gpu});
    }
  }
  std::map<Key, std::shared_ptr<Opening>> gone;  // closed without the lock
  {
    const std::lock_guard lock(mutex_);
    for (auto it = openings_.begin(); it != openings_.end();) {
      const auto next = std::next(it);
      if (fabric_.state().segments[it->first.first].generation != it->first.second) {
        gone.insert(openings_.extract(it));
      }
      it = next;
    }
  }
  for (const Found& each : found) {
    std::shared_ptr<Opening> opening;
    if (!succeeds([&] { opening = open(each.key, each.owner, each.share); })) continue;
    if (!opening->finished.load(std::memory_order_acquire)) continue;
    SegmentEntry& entry = fabric_.state().segments[each.key.first];
    const unsigned self = fabric_.process();
    entry.opened[self / 64].fetch_or(std::uint64_t{1} << self % 64);
  }
}

bool GpuMemory::all_open() {
  const std::lock_guard lock(mutex_);
  for (const auto& [key, opening] : openings_) {
    if (!opening->finished.load(std::memory_order_acquire)) return false;
  }
  return true;
}

void GpuMemory::settle(const SegmentEntry& segment) {
  survey();
  wait_a_while([&] {
    if (!all_open()) return false;
    const Fabric::Lock lock(fabric_);
    const State& state = fabric_.state();
    for (unsigned i = 0; i < kMaxProcesses; ++i) {
      const ProcessEntry& process = state.processes[i];
      if (process.pid == 0 || !process.gpu || i == fabric_.process()) continue;
      if ((segment.opened[i / 64].load() >> i % 64 & 1) == 0) return false;
    }
    return true;
  });
}

}  // namespace software_sisci
