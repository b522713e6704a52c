#include "link/cuda/device_peers.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "bootstrap/memory_handover.h"
#include "core/log.h"
#include "core/mutex.h"
#include "executor/cuda/cuda_error.h"

namespace ropewalk::link {
namespace {

// What a rank tells the others before it knows how they are reached.
struct Facts {
  std::uint64_t process = 0;  // Runtime::token()
  std::int32_t device = -1;   // as its process numbers it
  char bus_id[20] = {};
  cudaUUID_t uuid{};
};
struct Reach {
  bool all = true;  // of its peers' memory
  bool whole_lines = true;
};
// Its window.
struct Place {
  std::uint64_t address = 0;  // in its process
  std::uint64_t bytes = 0;
  cudaIpcMemHandle_t handle{};
  char fault[160] = {};
};

// What each rank says, by rank.
template <typename T>
std::vector<T> gathered(bootstrap::Bootstrap& bootstrap, const T& own) {
  std::vector<T> all(static_cast<std::size_t>(bootstrap.size()));
  all[static_cast<std::size_t>(bootstrap.rank())] = own;
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), sizeof(T), kNoDeadline);
  return all;
}

// The windows of this process's ranks, by address.
class Windows {
 public:
  static Windows& of_process() {
    static auto* windows = new Windows;  // used by threads that outlive main()
    return *windows;
  }
  void add(const std::shared_ptr<DeviceMemory>& window) {
    const Lock lock(mutex_);
    windows_[reinterpret_cast<std::uint64_t>(window->data())] = window;
  }
  std::shared_ptr<DeviceMemory> find(std::uint64_t address) {
    const Lock lock(mutex_);
    std::shared_ptr<DeviceMemory> window = windows_[address].lock();
    RW_ASSERT(window != nullptr);
    return window;
  }

 private:
  Mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<DeviceMemory>> windows_ RW_GUARDED_BY(mutex_);
};

// What this GPU can do with that of another rank.
Reach reach_of(const Facts& facts, int device) {
  int theirs = -1;
  if (cudaDeviceGetByPCIBusId(&theirs, facts.bus_id) != cudaSuccess) {
    cudaGetLastError();
    return {true, false};  // hidden from this process: opening its window will tell
  }
  if (theirs == device) return {true, true};
  int can = 0;
  int atomics = 0;
  executor::check_cuda(cudaDeviceCanAccessPeer(&can, device, theirs), "asking for peer access");
  // Lines of 128 bytes arrive whole over NVLink, which also carries atomics, as PCIe does not.
  const cudaError_t asked =
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, theirs);
  if (asked != cudaSuccess) cudaGetLastError();
  return {can != 0, can != 0 && asked == cudaSuccess && atomics != 0};
}

void enable_peer_access(int device) {
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else {
    executor::check_cuda(enabled, "enabling peer access");
  }
}

}  // namespace

DevicePeers::DevicePeers(bootstrap::Bootstrap& bootstrap, const Config& config,
                         std::uint64_t process, int device, std::vector<int> host_of_rank)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      device_(device),
      host_of_rank_(std::move(host_of_rank)),
      backing_(parse_shm_backing(config.text(Setting::kShmBacking))),
      peers_(static_cast<std::size_t>(size_)) {
  Facts facts;
  facts.process = process;
  facts.device = device;
  executor::check_cuda(cudaDeviceGetPCIBusId(facts.bus_id, sizeof facts.bus_id, device),
                       "naming the GPU");
  cudaDeviceProp properties{};
  executor::check_cuda(cudaGetDeviceProperties(&properties, device),
                       "asking for a GPU's properties");
  facts.uuid = properties.uuid;
  std::map<int, int> on_host;
  for (int r = 0; r < size_; ++r) {
    const int number = on_host[host_of(r)]++;
    peers_[static_cast<std::size_t>(r)].number_on_host = number;
    most_on_a_host_ = std::max(most_on_a_host_, number + 1);
  }
  const std::vector<Facts> all = gathered(bootstrap, facts);
  for (const Facts& one : all) {
    const auto sharing = std::ranges::count_if(all, [&](const Facts& other) {
      // Hosts may be told to be several (HOST_ID): then they share GPUs, too.
      return std::memcmp(&one.uuid, &other.uuid, sizeof one.uuid) == 0;
    });
    most_on_one_gpu_ = std::max(most_on_one_gpu_, static_cast<int>(sharing));
  }
  Reach own;
  own.all = config.flag(Setting::kPeerAccess);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (on_this_host(static_cast<int>(r))) {
      const Reach reach = reach_of(all[r], device);
      own.all = own.all && reach.all;
      own.whole_lines = own.whole_lines && reach.whole_lines;
    }
    peers_[r].same_process = all[r].process == facts.process && on_this_host(static_cast<int>(r));
  }
  for (const Reach& reach : gathered(bootstrap, own)) {
    peer_access_ = peer_access_ && reach.all;
    whole_lines_ = whole_lines_ && reach.whole_lines;
  }
  whole_lines_ = whole_lines_ && peer_access_;
  if (!peer_access_) return;
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (peers_[r].same_process && all[r].device != device) enable_peer_access(all[r].device);
  }
}

DevicePeers::~DevicePeers() = default;

void DevicePeers::open_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                               cudaStream_t stream, Deadline deadline) {
  if (peer_access_) {
    open_device_windows(bootstrap, bytes, stream);
  } else {
    open_host_windows(bootstrap, bytes, deadline);
  }
}

void DevicePeers::open_device_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                      cudaStream_t stream) {
  Place own;
  own.bytes = bytes;
  // Each rank finds its own faults; then all hear of the first.
  const auto note = [&own](const Error& error) {
    std::string_view(error.what()).copy(own.fault, sizeof own.fault - 1);
  };
  const auto tell_faults = [&](const std::vector<Place>& places) {
    for (std::size_t r = 0; r < places.size(); ++r) {
      if (places[r].fault[0] != '\0') {
        throw Error(Errc::kCuda, "rank {}: {}", r, places[r].fault);
      }
    }
  };
  try {
    own_ = std::make_shared<DeviceMemory>(bytes);
    // Done before any peer is told where the window is.
    executor::check_cuda(cudaMemsetAsync(own_->data(), 0, bytes, stream), "clearing the window");
    executor::check_cuda(cudaStreamSynchronize(stream), "clearing the window");
    executor::check_cuda(cudaIpcGetMemHandle(&own.handle, own_->data()), "sharing the window");
    own.address = reinterpret_cast<std::uint64_t>(own_->data());
    Windows::of_process().add(own_);
  } catch (const Error& error) {
    note(error);
  }
  const std::vector<Place> places = gathered(bootstrap, own);
  tell_faults(places);
  try {
    for (int r = 0; r < size_; ++r) {
      const Place& place = places[static_cast<std::size_t>(r)];
      Peer& peer = peers_[static_cast<std::size_t>(r)];
      if (place.bytes != bytes) {
        throw Error(
            Errc::kInvalidUsage,
            "rank {} has a window of {} bytes, rank {} of {}: ROPEWALK_DEVICE_WINDOW differs", r,
            place.bytes, rank_, bytes);
      }
      if (!on_this_host(r)) continue;
      if (peer.same_process) {
        peer.shared = r == rank_ ? own_ : Windows::of_process().find(place.address);
        peer.window = peer.shared->data();
      } else {
        peer.opened = OpenedMemory(place.handle);
        peer.window = peer.opened.data();
      }
    }
  } catch (const Error& error) {
    note(error);
  }
  tell_faults(gathered(bootstrap, own));
}

void DevicePeers::open_host_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                    Deadline deadline) {
  std::vector<int> near;  // ranks of this host; the first makes the memory
  for (int r = 0; r < size_; ++r) {
    if (on_this_host(r)) near.push_back(r);
  }
  const int first = near.front();
  const std::size_t total = bytes * near.size();
  struct Offer {
    std::uint64_t bytes = 0;
    char server[33] = {};
  };
  Offer own;
  own.bytes = bytes;
  std::unique_ptr<DescriptorServer> server;
  if (rank_ == first) {
    server = std::make_unique<DescriptorServer>();
    server->name().copy(own.server, sizeof own.server - 1);
  }
  const std::vector<Offer> offers = gathered(bootstrap, own);
  for (int r = 0; r < size_; ++r) {
    if (offers[static_cast<std::size_t>(r)].bytes != bytes) {
      throw Error(Errc::kInvalidUsage,
                  "rank {} has a window of {} bytes, rank {} of {}: ROPEWALK_DEVICE_WINDOW differs",
                  r, offers[static_cast<std::size_t>(r)].bytes, rank_, bytes);
    }
  }
  if (rank_ == first) {
    SharedMemory memory = SharedMemory::create(total, backing_);
    memory.reserve(0, total);
    const std::vector<int> others(near.begin() + 1, near.end());
    bootstrap::hand_over(*server, memory.fd(), static_cast<int>(others.size()), others, bootstrap,
                         deadline);
    host_ = std::make_unique<PinnedMemory>(std::move(memory));
  } else {
    host_ = std::make_unique<PinnedMemory>(SharedMemory::map(
        bootstrap::descriptor_of(first, offers[static_cast<std::size_t>(first)].server, deadline),
        total));
  }
  for (std::size_t i = 0; i < near.size(); ++i) {
    peers_[static_cast<std::size_t>(near[i])].window = host_->on_device() + i * bytes;
  }
  log::info(log::kInit,
            "rank {}: GPUs have no access to each other's memory; data goes through {} MiB of the "
            "host's",
            rank_, total >> 20);
}

}  // namespace ropewalk::link
