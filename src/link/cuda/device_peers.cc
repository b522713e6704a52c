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
#include "executor/cuda/owned.h"
#include "executor/cuda/pattern.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kPageBytes = 4096;

// What a rank sends to all others before the kinds of links are known.
struct Facts {
  std::uint64_t process = 0;  // Runtime::token()
  std::int32_t device = -1;   // number in its own process
  char bus_id[20] = {};
  cudaUUID_t uuid{};
};
// A rank's window in device memory, as sent to the others.
struct WindowRecord {
  std::uint64_t address = 0;  // in its process
  std::uint64_t bytes = 0;
  transport::window::CuIpcHandle handle;
  char fault[160] = {};
};

// The records of all ranks, by rank.
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

// What CUDA reports about access from this GPU to another rank's.
PeerAccess::View view_of(const Facts& facts, int device) {
  int theirs = -1;
  if (cudaDeviceGetByPCIBusId(&theirs, facts.bus_id) != cudaSuccess) {
    cudaGetLastError();
    return {1, 0};  // not visible to this process: opening its window will show
  }
  if (theirs == device) return {1, 1};
  int can = 0;
  int atomics = 0;
  executor::check_cuda(cudaDeviceCanAccessPeer(&can, device, theirs), "cudaDeviceCanAccessPeer");
  // Lines of 128 bytes arrive whole over NVLink, which also carries atomics, as PCIe does not.
  const cudaError_t asked =
      cudaDeviceGetP2PAttribute(&atomics, cudaDevP2PAttrNativeAtomicSupported, device, theirs);
  if (asked != cudaSuccess) cudaGetLastError();
  const bool whole_lines = can != 0 && asked == cudaSuccess && atomics != 0;
  return {static_cast<std::uint8_t>(can != 0), static_cast<std::uint8_t>(whole_lines)};
}

void enable_peer_access(int device) {
  const cudaError_t enabled = cudaDeviceEnablePeerAccess(device, 0);
  if (enabled == cudaErrorPeerAccessAlreadyEnabled) {
    cudaGetLastError();
  } else {
    executor::check_cuda(enabled, "cudaDeviceEnablePeerAccess");
  }
}

}  // namespace

DevicePeers::DevicePeers(bootstrap::Bootstrap& bootstrap, const Config& config,
                         std::uint64_t process, const transport::window::Gpu& gpu,
                         std::vector<int> host_of_rank)
    : rank_(bootstrap.rank()),
      size_(bootstrap.size()),
      gpu_(gpu),
      host_of_rank_(std::move(host_of_rank)),
      backing_(parse_shm_backing(config.text(Setting::kShmBacking))),
      peers_(static_cast<std::size_t>(size_)) {
  const int device = gpu.ordinal();
  Facts facts;
  facts.process = process;
  facts.device = device;
  executor::check_cuda(cudaDeviceGetPCIBusId(facts.bus_id, sizeof facts.bus_id, device),
                       "cudaDeviceGetPCIBusId");
  cudaDeviceProp properties{};
  executor::check_cuda(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
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
      // Where HOST_ID divides one host, several "hosts" share a GPU.
      return std::memcmp(&one.uuid, &other.uuid, sizeof one.uuid) == 0;
    });
    most_on_one_gpu_ = std::max(most_on_one_gpu_, static_cast<int>(sharing));
  }
  const auto named_with_this = [&](Setting setting, const char* name) {
    std::vector<bool> named(peers_.size(), false);
    for (const auto& [a, b] : parse_rank_pairs(name, config.text(setting))) {
      const int other = a == rank_ ? b : a;
      if ((a != rank_ && b != rank_) || other >= size_) continue;
      named[static_cast<std::size_t>(other)] = true;
    }
    return named;
  };
  const std::vector<bool> denied = named_with_this(Setting::kPeerAccessDeny, "PEER_ACCESS_DENY");
  spoiled_ = named_with_this(Setting::kPeerAccessFaulty, "PEER_ACCESS_FAULTY");
  views_.resize(peers_.size());
  for (std::size_t r = 0; r < all.size(); ++r) {
    peers_[r].same_process = all[r].process == facts.process && on_this_host(static_cast<int>(r));
    if (!on_this_host(static_cast<int>(r)) || denied[r]) continue;
    if (config.flag(Setting::kPeerAccess)) views_[r] = view_of(all[r], device);
  }
  agree(bootstrap);
  for (std::size_t r = 0; r < all.size(); ++r) {
    if (peers_[r].same_process && all[r].device != device && reaches(static_cast<int>(r))) {
      enable_peer_access(all[r].device);
    }
  }
}

// Gathers every rank's views, and derives the relation from them.
void DevicePeers::agree(bootstrap::Bootstrap& bootstrap) {
  const auto n = static_cast<std::size_t>(size_);
  std::vector<PeerAccess::View> all(n * n);
  std::ranges::copy(views_, all.begin() + static_cast<std::ptrdiff_t>(rank_) * size_);
  bootstrap.all_gather(std::as_writable_bytes(std::span(all)), n * sizeof(PeerAccess::View),
                       kNoDeadline);
  access_ = PeerAccess(all, host_of_rank_);
}

DevicePeers::~DevicePeers() = default;

void DevicePeers::open_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                               cudaStream_t stream, Deadline deadline) {
  if (access_.any()) {
    open_device_windows(bootstrap, layouts.device, stream);
    try_windows(bootstrap, stream);
  } else if (size_ == 1 || access_.missing().empty()) {
    // No other rank on this host.
    open_device_windows(bootstrap, layouts.device, stream);
  }
  if (!access_.missing().empty()) open_host_windows(bootstrap, layouts, deadline);
}

void DevicePeers::open_device_windows(bootstrap::Bootstrap& bootstrap, const WindowLayout& layout,
                                      cudaStream_t stream) {
  const std::size_t bytes = layout.bytes();
  WindowRecord own;
  own.bytes = bytes;
  // Each rank reports its own failure; then all throw the first one.
  const auto note = [&own](const Error& error) {
    std::string_view(error.what()).copy(own.fault, sizeof own.fault - 1);
  };
  const auto tell_faults = [&](const std::vector<WindowRecord>& records) {
    for (std::size_t r = 0; r < records.size(); ++r) {
      if (records[r].fault[0] != '\0') {
        throw Error(Errc::kCuda, "rank {}: {}", r, records[r].fault);
      }
    }
  };
  try {
    own_ = std::make_shared<DeviceMemory>(bytes);
    // The window is ready before any peer learns its address.
    executor::check_cuda(cudaMemsetAsync(own_->data(), 0, bytes, stream),
                         "cudaMemsetAsync (a window)");
    executor::check_cuda(cudaStreamSynchronize(stream),
                         "cudaStreamSynchronize (clearing a window)");
    own.address = reinterpret_cast<std::uint64_t>(own_->data());
    own.handle = transport::window::ipc_handle_of(gpu_, own.address);
    Windows::of_process().add(own_);
  } catch (const Error& error) {
    note(error);
  }
  const std::vector<WindowRecord> records = gathered(bootstrap, own);
  tell_faults(records);
  try {
    for (int r = 0; r < size_; ++r) {
      const WindowRecord& record = records[static_cast<std::size_t>(r)];
      Peer& peer = peers_[static_cast<std::size_t>(r)];
      if (record.bytes != bytes) {
        throw Error(
            Errc::kInvalidUsage,
            "rank {} has a window of {} bytes, rank {} of {}: ROPEWALK_DEVICE_WINDOW differs", r,
            record.bytes, rank_, bytes);
      }
      if (!reaches(r)) continue;
      if (peer.same_process) {
        peer.shared = r == rank_ ? own_ : Windows::of_process().find(record.address);
        peer.window = peer.shared->data();
      } else {
        try {
          peer.opened =
              transport::window::IpcMemory(gpu_, record.handle, fmt::format("rank {}", r));
          // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the GPU
          peer.window = reinterpret_cast<std::byte*>(peer.opened.base());
        } catch (const Error& error) {
          log::warn("rank {}: the window of rank {} goes through the host's memory: {}", rank_, r,
                    error.what());
          views_[static_cast<std::size_t>(r)] = {};
        }
      }
      if (peer.window != nullptr) peer.board = peer.window + layout.board_offset(0);
    }
  } catch (const Error& error) {
    note(error);
  }
  tell_faults(gathered(bootstrap, own));
  agree(bootstrap);
}

void DevicePeers::try_windows(bootstrap::Bootstrap& bootstrap, cudaStream_t stream) {
  constexpr std::size_t kWords = 256;
  constexpr std::size_t kBytes = kWords * sizeof(std::uint64_t);
  const auto number = [&](int rank) { return static_cast<std::size_t>(number_on_host(rank)); };
  const auto seed = [&](int from, int to) {
    return static_cast<std::uint64_t>(from) * static_cast<std::uint64_t>(size_) +
           static_cast<std::uint64_t>(to);
  };
  // Where `from` writes in a window.
  const auto area = [&](std::byte* window, int from) {
    return reinterpret_cast<std::uint64_t*>(window + number(from) * kBytes);
  };
  const auto tried = [&](int rank) { return rank != rank_ && reaches(rank); };
  const std::size_t cleared = static_cast<std::size_t>(most_on_a_host_) * kBytes;
  RW_ASSERT(cleared <= own_->bytes());
  const char* const launched = "kernel launch (trying peer access)";
  const char* const waited = "cudaStreamSynchronize (trying peer access)";
  for (int r = 0; r < size_; ++r) {
    if (!tried(r)) continue;
    const std::uint64_t spoiled = spoiled_[static_cast<std::size_t>(r)] ? ~std::uint64_t{0} : 0;
    executor::check_cuda(
        executor::store_pattern(area(peers_[static_cast<std::size_t>(r)].window, rank_), kWords,
                                seed(rank_, r) ^ spoiled, stream),
        launched);
  }
  executor::check_cuda(cudaStreamSynchronize(stream), waited);
  bootstrap.barrier(kNoDeadline);
  // Checks what peers stored here, and loads back what this rank stored there.
  const executor::PinnedBuffer counts(sizeof(unsigned) * 2 * peers_.size());
  auto* const wrong = static_cast<unsigned*>(counts.data());
  std::fill_n(wrong, 2 * peers_.size(), 0U);
  for (int r = 0; r < size_; ++r) {
    if (!tried(r)) continue;
    const auto i = static_cast<std::size_t>(r);
    executor::check_cuda(executor::count_wrong_words(area(own_->data(), r), kWords, seed(r, rank_),
                                                     wrong + 2 * i, stream),
                         launched);
    executor::check_cuda(
        executor::count_wrong_words(area(peers_[i].window, rank_), kWords,
                                    seed(rank_, r) ^ (spoiled_[i] ? ~std::uint64_t{0} : 0),
                                    wrong + 2 * i + 1, stream),
        launched);
  }
  executor::check_cuda(cudaStreamSynchronize(stream), waited);
  for (int r = 0; r < size_; ++r) {
    const auto i = static_cast<std::size_t>(r);
    if (wrong[2 * i] + wrong[2 * i + 1] == 0) continue;
    log::warn(
        "rank {}: CUDA says that its GPU and that of rank {} have access to each other's memory, "
        "but of {} words {} arrived wrong and {} were read back wrong; this pair goes through the "
        "host's memory",
        rank_, r, kWords, wrong[2 * i], wrong[2 * i + 1]);
    views_[i] = {};
  }
  agree(bootstrap);  // all ranks have read
  executor::check_cuda(cudaMemsetAsync(own_->data(), 0, cleared, stream),
                       "cudaMemsetAsync (a window)");
  executor::check_cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize (clearing a window)");
  for (int r = 0; r < size_; ++r) {
    if (reaches(r)) continue;
    Peer& peer = peers_[static_cast<std::size_t>(r)];
    peer.window = peer.board = nullptr;
    peer.shared = nullptr;
    peer.opened = {};
  }
}

std::byte* DevicePeers::of_pair(std::byte* both, std::size_t bytes, int peer,
                                int rank) const noexcept {
  RW_ASSERT(rank == peer || rank == rank_);
  return both + (rank == std::max(rank_, peer) ? bytes : 0);
}

std::byte* DevicePeers::host_window(int peer, int rank) const noexcept {
  return of_pair(peers_[static_cast<std::size_t>(peer)].host_windows, host_window_bytes_, peer,
                 rank);
}

std::byte* DevicePeers::hybrid_window(int peer, int rank) const noexcept {
  return of_pair(peers_[static_cast<std::size_t>(peer)].hybrid_windows, hybrid_window_bytes_, peer,
                 rank);
}

std::vector<int> DevicePeers::ranks_of_this_host() const {
  std::vector<int> near;
  for (int r = 0; r < size_; ++r) {
    if (on_this_host(r)) near.push_back(r);
  }
  return near;
}

std::unique_ptr<PinnedMemory> DevicePeers::share_on_host(bootstrap::Bootstrap& bootstrap,
                                                         std::size_t bytes,
                                                         std::size_t window_bytes,
                                                         Deadline deadline) {
  const std::vector<int> near = ranks_of_this_host();
  const int first = near.front();  // allocates the memory
  struct Offer {
    std::uint64_t window_bytes = 0;
    char server[33] = {};
  };
  Offer own;
  own.window_bytes = window_bytes;
  std::unique_ptr<DescriptorServer> server;
  if (rank_ == first && bytes > 0) {
    server = std::make_unique<DescriptorServer>();
    server->name().copy(own.server, sizeof own.server - 1);
  }
  const std::vector<Offer> offers = gathered(bootstrap, own);
  for (int r = 0; r < size_; ++r) {
    const std::uint64_t theirs = offers[static_cast<std::size_t>(r)].window_bytes;
    if (theirs != window_bytes) {
      throw Error(Errc::kInvalidUsage,
                  "rank {} has a window of {} bytes, rank {} of {}: ROPEWALK_DEVICE_WINDOW differs",
                  r, theirs, rank_, window_bytes);
    }
  }
  if (bytes == 0) return nullptr;
  if (rank_ != first) {
    const Offer& offer = offers[static_cast<std::size_t>(first)];
    return std::make_unique<PinnedMemory>(
        SharedMemory::map(bootstrap::descriptor_of(first, offer.server, deadline), bytes));
  }
  SharedMemory memory = SharedMemory::create(bytes, backing_);
  memory.reserve(0, bytes);
  const std::vector<int> others(near.begin() + 1, near.end());
  bootstrap::hand_over(*server, memory.fd(), static_cast<int>(others.size()), others, bootstrap,
                       deadline);
  return std::make_unique<PinnedMemory>(std::move(memory));
}

std::unique_ptr<PinnedMemory> DevicePeers::share_with_all(bootstrap::Bootstrap& bootstrap,
                                                          std::size_t bytes, Deadline deadline) {
  return share_on_host(bootstrap, bytes, bytes, deadline);
}

void DevicePeers::open_host_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                                    Deadline deadline) {
  host_window_bytes_ = layouts.host.bytes();
  const std::vector<int> near = ranks_of_this_host();
  std::vector<RankPair> pairs;
  for (const RankPair& pair : access_.missing()) {
    if (on_this_host(pair.first)) pairs.push_back(pair);
  }
  // The tag boards of all ranks, then two windows for each pair without access. A host may have no
  // such pair.
  const std::size_t board_bytes =
      (layouts.device.bytes_of_boards() + kPageBytes - 1) / kPageBytes * kPageBytes;
  const std::size_t pair_bytes = 2 * host_window_bytes_;
  const std::size_t total =
      pairs.empty() ? 0 : near.size() * board_bytes + pairs.size() * pair_bytes;
  host_ = share_on_host(bootstrap, total, host_window_bytes_, deadline);
  if (host_ == nullptr) return;
  std::byte* next = host_->on_device();
  for (const int r : near) {
    peers_[static_cast<std::size_t>(r)].board = next;
    next += board_bytes;
  }
  for (const auto& [a, b] : pairs) {
    if (a == rank_) peers_[static_cast<std::size_t>(b)].host_windows = next;
    if (b == rank_) peers_[static_cast<std::size_t>(a)].host_windows = next;
    next += pair_bytes;
  }
  if (rank_ == near.front()) {
    log::info(log::kInit,
              "rank {}: {} of {} pairs of GPUs have no access to each other's memory; their data "
              "goes through {} MiB of the host's",
              rank_, pairs.size(), near.size() * (near.size() - 1) / 2, total >> 20);
  }
}

void DevicePeers::open_hybrid_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                                      Deadline deadline) {
  hybrid_window_bytes_ = layouts.hybrid.bytes();
  const std::vector<int> near = ranks_of_this_host();
  const std::size_t pairs = near.size() * (near.size() - 1) / 2;
  hybrid_ =
      share_on_host(bootstrap, pairs * 2 * hybrid_window_bytes_, hybrid_window_bytes_, deadline);
  if (hybrid_ == nullptr) return;
  std::byte* next = hybrid_->on_device();
  for (std::size_t a = 0; a < near.size(); ++a) {
    for (std::size_t b = a + 1; b < near.size(); ++b) {
      if (near[a] == rank_) peers_[static_cast<std::size_t>(near[b])].hybrid_windows = next;
      if (near[b] == rank_) peers_[static_cast<std::size_t>(near[a])].hybrid_windows = next;
      next += 2 * hybrid_window_bytes_;
    }
  }
}

}  // namespace ropewalk::link
