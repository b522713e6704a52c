// The software library within one process: what its handles point at, and its two threads.
//
// The threads, the file of the fabric and its descriptor are there while a descriptor of the API is
// open, as the driver's work is: a plugin that is unloaded closes what it opened, and must not call
// SCITerminate, which would end the library for others in its process.
//
// The engine thread copies what DMA queues have posted; whoever asks for a queue's state copies
// too, so that a program which polls is not slowed by a thread that waits for its core. The event
// thread calls callbacks, notices links, ended processes and new settings. Callbacks may call the
// API.
//
// A forked child starts with nothing: its first SCIInitialize makes a new Library.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "broadcast.h"
#include "fabric.h"
#include "gpu.h"
#include "settings.h"
#include "sisci_api.h"

namespace software_sisci {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kWord = 8;
constexpr std::size_t kPage = 4096;
constexpr std::size_t kGpuPage = 64 << 10;
constexpr std::size_t kMaxTransfer = std::size_t{1} << 31;

/// Counts what hangs below a handle, so that it cannot be closed before.
struct Counted {
  std::atomic<int> children{0};
};

/// A reference of a child to its parent.
class Below {
 public:
  explicit Below(Counted& parent) : parent_(&parent) { ++parent.children; }
  ~Below() { --parent_->children; }
  Below(const Below&) = delete;
  Below& operator=(const Below&) = delete;

 private:
  Counted* parent_;
};

class Library;

/// What the event thread found: whether to look again at once, or never.
enum class Looked { kNothing, kCalled, kCancelled };
inline Looked called(sci_callback_action_t action) {
  return action == SCI_CALLBACK_CANCEL ? Looked::kCancelled : Looked::kCalled;
}

/// Objects that the event thread polls.
class Watched {
 public:
  virtual ~Watched() = default;
  /// Called by the event thread without any lock. Calls at most one callback, last: that may have
  /// destroyed the object.
  virtual Looked look(Library& library) = 0;
};

}  // namespace software_sisci

struct sci_desc : software_sisci::Counted {
  std::uint64_t library = 0;  // which of this process's libraries counts it
};

struct sci_local_segment final : software_sisci::Counted, software_sisci::Watched {
  explicit sci_local_segment(sci_desc& desc) : below(desc) {}
  software_sisci::Looked look(software_sisci::Library& library) override;

  software_sisci::Below below;
  software_sisci::SegmentEntry* entry = nullptr;
  std::uint64_t generation = 0;
  unsigned id = 0;
  std::size_t bytes = 0;
  bool owner = true;  // false: attached from another process of the host
  bool private_ = false;
  bool broadcast = false;
  bool unicast = true;
  int file = -1;
  std::byte* memory = nullptr;  // null while an empty segment has none
  software_sisci::Backing backing = software_sisci::Backing::kNone;
  std::shared_ptr<const software_sisci::GpuView> gpu;  // of kGpu
  std::uint64_t events_read = 0;
  sci_cb_local_segment_t callback = nullptr;
  void* arg = nullptr;
};

struct sci_remote_segment final : software_sisci::Counted, software_sisci::Watched {
  explicit sci_remote_segment(sci_desc& desc) : below(desc) {}
  software_sisci::Looked look(software_sisci::Library& library) override;

  software_sisci::Below below;
  std::unique_ptr<software_sisci::Group> group;  // of node 252; else what follows
  software_sisci::ConnectionEntry* connection = nullptr;
  software_sisci::SegmentEntry* entry = nullptr;
  std::uint64_t generation = 0;
  unsigned node = 0;
  unsigned host = 0;
  unsigned id = 0;
  unsigned adapter = 0;
  std::size_t bytes = 0;
  software_sisci::Backing backing = software_sisci::Backing::kNone;
  int file = -1;
  std::byte* memory = nullptr;                         // of kLibrary: mapped for the engine
  std::shared_ptr<const software_sisci::GpuView> gpu;  // of kGpu
  pid_t pid = 0;                                       // of kUser: where `address` is
  std::uint64_t address = 0;
  std::atomic<bool> lost{false};
  std::atomic<bool> operational{true};
  std::mutex events_lock;
  std::deque<sci_segment_cb_reason_t> events;
  sci_cb_remote_segment_t callback = nullptr;
  void* arg = nullptr;
  std::mutex maps_lock;
  std::set<sci_map*> maps;
};

struct sci_map final {
  explicit sci_map(software_sisci::Counted& parent) : below(parent) {}
  software_sisci::Below below;
  sci_remote_segment* remote = nullptr;  // null: of a local segment
  sci_local_segment* local = nullptr;
  std::size_t offset = 0;
  std::size_t bytes = 0;
  std::byte* pointer = nullptr;
  bool fixed = false;  // the address was the program's
  bool dead = false;   // shows ones, keeps nothing
  // With delayed stores the program writes into `pointer`, and a flush carries on what differs from
  // `sent` to `target`. For a broadcast segment always, and to the members of its group.
  std::mutex lock;
  std::byte* target = nullptr;
  std::vector<std::byte> sent;  // whole words; empty when stores arrive at once
  std::uint64_t told = 0;       // the newest member of the group that has received earlier stores
  std::uint64_t flushes = 0;
  software_sisci::Clock::time_point flushed = software_sisci::Clock::now();
  bool store_lost = false;
  std::set<sci_sequence*> sequences;
};

struct sci_sequence {
  explicit sci_sequence(sci_map& of) : map(&of) {}
  sci_map* map;  // null once it is unmapped
  bool broken = false;
};

struct sci_dma_queue final : software_sisci::Counted, software_sisci::Watched {
  explicit sci_dma_queue(sci_desc& desc) : below(desc) {}
  software_sisci::Looked look(software_sisci::Library& library) override;
  /// Copies up to `limit` bytes; finishes when all is copied and the time has come.
  /// @return whether there is more to copy at once
  bool progress(software_sisci::Library& library, std::size_t limit);

  struct Piece {
    std::byte* local = nullptr;
    std::size_t remote_offset = 0;
    std::size_t bytes = 0;
  };

  software_sisci::Below below;
  unsigned adapter = 0;
  unsigned max_entries = 0;
  std::atomic<sci_dma_queue_state_t> state{SCI_DMAQUEUE_IDLE};
  std::mutex lock;
  std::condition_variable ended;
  // Of the posted transfer.
  sci_remote_segment* remote = nullptr;
  std::optional<software_sisci::Below> uses_remote;
  std::optional<software_sisci::Below> uses_local;
  std::shared_ptr<const software_sisci::GpuView> local_gpu;  // that `local` of the pieces is in
  std::byte* local_begin = nullptr;                          // its address
  std::vector<Piece> pieces;
  std::size_t piece = 0;
  std::size_t copied = 0;  // of that piece
  bool read = false;
  bool moves_nothing = false;
  bool fails = false;
  software_sisci::Clock::time_point due;
  sci_cb_dma_t callback = nullptr;
  void* arg = nullptr;
  std::atomic<bool> callback_due{false};
  bool seen_by_engine = false;  // with the lock of what is posted
};

struct sci_dma_channel : software_sisci::Counted {
  explicit sci_dma_channel(sci_desc& desc) : below(desc) {}
  software_sisci::Below below;
};

namespace software_sisci {

/// Both kinds of local interrupts.
struct LocalInterrupt : Watched {
  explicit LocalInterrupt(sci_desc& desc) : below(desc) {}
  Looked look(Library& library) override;
  Below below;
  InterruptEntry* entry = nullptr;
  std::uint64_t generation = 0;
  unsigned number = 0;
  bool data = false;
  sci_cb_interrupt_t callback = nullptr;
  sci_cb_data_interrupt_t data_callback = nullptr;
  void* arg = nullptr;
};

struct RemoteInterrupt {
  explicit RemoteInterrupt(sci_desc& desc) : below(desc) {}
  Below below;
  InterruptEntry* entry = nullptr;
  std::uint64_t generation = 0;
  unsigned host = 0;
  unsigned adapter = 0;
};

}  // namespace software_sisci

struct sci_local_interrupt final : software_sisci::LocalInterrupt {
  using LocalInterrupt::LocalInterrupt;
};
struct sci_local_data_interrupt final : software_sisci::LocalInterrupt {
  using LocalInterrupt::LocalInterrupt;
};
struct sci_remote_interrupt final : software_sisci::RemoteInterrupt {
  using RemoteInterrupt::RemoteInterrupt;
};
struct sci_remote_data_interrupt final : software_sisci::RemoteInterrupt {
  using RemoteInterrupt::RemoteInterrupt;
};

namespace software_sisci {

/// A call's failure, turned into its error code where it leaves the library.
struct Failure {
  sci_error_t code;
};

/// When a file was written, and which it is.
struct FileVersion {
  std::int64_t nanoseconds = 0;
  std::uint64_t inode = 0;
  friend bool operator==(const FileVersion&, const FileVersion&) = default;
};

class Library {
 public:
  /// This process's, or null before SCIInitialize.
  static Library* get() noexcept;
  /// Makes it. @throws Failure
  static void start();
  static void stop();

  /// SCIOpen: the first descriptor starts the threads. @throws Failure
  void open(sci_desc& descriptor);
  /// SCIClose: the last one ends them.
  void close(const sci_desc& descriptor);
  /// At the end of the process, whose other threads may still be at work here.
  void leave() noexcept;

  [[nodiscard]] std::shared_ptr<const Settings> settings() const;
  void read_settings_if_changed() const;
  [[nodiscard]] unsigned host() const noexcept { return host_; }
  /// While a descriptor is open.
  Fabric& fabric() noexcept { return *fabric_; }

  /// The host with that node id on the fabric of an adapter.
  [[nodiscard]] std::optional<unsigned> host_of(unsigned adapter, unsigned node) const;
  /// @throws Failure when the number is no adapter's
  void check_adapter(unsigned adapter) const;
  /// @throws Failure when a link between is down or the node does not answer
  [[nodiscard]] unsigned reach(unsigned adapter, unsigned node) const;

  void watch(Watched& object);
  /// Returns when no callback of it runs, unless it is called by one.
  void forget(Watched& object);

  void posted(sci_dma_queue& queue);
  void withdraw(sci_dma_queue& queue);
  void wake_events() { fabric_->announce(); }

  /// Number of a transfer, from 1.
  std::uint64_t next_transfer() { return ++transfers_; }
  /// When a transfer of `bytes` ends on a link of limited speed.
  Clock::time_point end_of_transfer(unsigned adapter, std::size_t bytes);

  /// Of a map that holds stores back.
  void map_made(sci_map& map);
  void map_gone(sci_map& map);

  /// CUDA, opened when it is first asked for. @throws Failure where there is none
  GpuMemory& gpu_memory();

  std::atomic<std::size_t> mapped{0};
  std::atomic<std::size_t> queues{0};

 private:
  Library();
  ~Library();
  void begin();
  void end();
  void run_engine();
  bool carry_on(std::unique_lock<std::mutex>& lock);
  void run_events();

  const std::uint64_t id_;
  std::mutex life_lock_;
  std::size_t descriptors_ = 0;

  std::string settings_path_;
  mutable std::mutex settings_lock_;
  mutable FileVersion settings_version_;
  mutable std::shared_ptr<const Settings> settings_;
  std::atomic<bool> watching_{false};  // the event thread looks for new settings
  unsigned host_ = 0;
  std::unique_ptr<Fabric> fabric_;
  std::atomic<std::uint64_t> transfers_{0};

  std::mutex link_lock_;
  std::array<Clock::time_point, kMaxAdapters> link_free_{};

  std::mutex watched_lock_;
  std::condition_variable unpinned_;
  std::set<Watched*> watched_;
  Watched* pinned_ = nullptr;  // its callback may be running

  std::mutex posted_lock_;
  std::condition_variable posted_changed_;
  std::vector<sci_dma_queue*> posted_;
  bool engine_sleeps_ = false;  // until something is posted
  bool engine_wanted_ = false;  // before its turn

  std::mutex delayed_lock_;
  std::set<sci_map*> delayed_;

  std::mutex gpu_lock_;
  std::unique_ptr<GpuMemory> gpu_;
  std::atomic<GpuMemory*> gpu_there_{nullptr};

  std::atomic<bool> stopping_{false};
  std::thread engine_;
  std::thread events_;
};

/// The library of this process. @throws Failure when it was not initialized
Library& library();

/// Carries on what was stored into a map that holds stores back.
/// @param asked by the program: faults count such flushes
/// @return whether there was anything
bool flush_map(Library& library, sci_map& map, bool asked);

// Memory of segments, which is an anonymous file of the owner's.
inline std::size_t rounded(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }
/// @return -1 when the process has ended or may not be looked into
int open_file_of(pid_t process, int file);
/// @throws Failure
std::byte* map_file(int file, std::size_t bytes);
void close_memory(int file, std::byte* memory, std::size_t bytes);

/// Runs `body` for a call of the API and writes *error.
template <typename Body>
auto call(sci_error_t* error, Body&& body) -> decltype(body()) {
  using Result = decltype(body());
  sci_error_t code = SCI_ERR_OK;
  if constexpr (std::is_void_v<Result>) {
    try {
      body();
    } catch (const Failure& failure) {
      code = failure.code;
    } catch (...) {
      code = SCI_ERR_SYSTEM;
    }
    if (error != nullptr) *error = code;
  } else {
    Result result{};
    try {
      result = body();
    } catch (const Failure& failure) {
      code = failure.code;
    } catch (...) {
      code = SCI_ERR_SYSTEM;
    }
    if (error != nullptr) *error = code;
    return result;
  }
}

inline void require(bool condition, sci_error_t code) {
  if (!condition) throw Failure{code};
}

/// Waits for `ready` as long as a timeout in milliseconds says. @return whether it became true
template <typename Ready>
bool wait_for(Library& library, unsigned timeout, Ready ready) {
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(timeout);
  for (;;) {
    const std::uint32_t seen = library.fabric().state().change;
    if (ready()) return true;
    if (timeout != SCI_INFINITE_TIMEOUT && Clock::now() >= end) return false;
    library.fabric().wait_for_change(seen, 5);
  }
}

}  // namespace software_sisci

/// Exports a function under its other prefix, too.
#define SISCI_EXPORT(name)                                                           \
  extern "C" __attribute__((                                                         \
      visibility("default"),                                                         \
      alias("_SISCI_PUBLIC_FUNC_ST_" #name))) decltype(_SISCI_PUBLIC_FUNC_ST_##name) \
      _SISCI_PUBLIC_FUNC_MT_##name
