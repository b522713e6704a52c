#include "transport/window/shm/shm.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "core/copy_in_order.h"
#include "core/error.h"
#include "core/log.h"
#include "core/mutex.h"
#include "core/process_memory.h"
#include "core/shared_memory.h"
#include "transport/simple_requests.h"
#include "transport/window/engine.h"
#include "transport/window/shm/copy_pool.h"
#include "transport/window/shm/rendezvous.h"

#if defined(__SANITIZE_THREAD__)
#define RW_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define RW_TSAN 1
#endif
#endif
#ifdef RW_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace ropewalk::transport::window {
namespace {

// Copies by the kernel: large enough to hide the system call, small enough to be a short wait.
constexpr std::size_t kPieceBytes = 256 << 10;
// Smaller ones are copied before another thread would have woken up.
constexpr std::size_t kLeastForThread = 128 << 10;
// A core's copy bandwidth and the time of a cache line between cores; they only order devices.
constexpr double kSpeedMbps = 80'000;
constexpr double kLatencyUs = 0.3;

enum class SingleCopy { kAuto, kOn, kOff };

// Both ends of a path within one process map the window at different addresses, so the thread
// sanitizer cannot see that writing a word and reading it orders the two threads; nor that closing
// the socket and noticing it does.
#ifdef RW_TSAN
char tsan_order;
void tsan_release() noexcept { __tsan_release(&tsan_order); }
void tsan_acquire() { __tsan_acquire(&tsan_order); }
// GCC refuses fences under the thread sanitizer; a locked operation is one on x86.
void full_fence() {
  std::atomic<int> locked = 0;
  locked.fetch_add(1, std::memory_order_seq_cst);
}
#else
void tsan_release() noexcept {}
void tsan_acquire() {}
void full_fence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
#endif

FileDescriptor open_pidfd(pid_t pid) {
  if (pid <= 0 || pid == getpid()) return {};
  return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

// Logged once, since a system that forbids it forbids it to every connection.
void warn_of_two_copies(const std::string& why) {
  static std::atomic<bool> warned{false};
  if (warned.exchange(true)) return;
  log::warn("shm: single copy not used, messages are copied twice: {}", why);
}

class ShmPath final : public HostPath {
 public:
  // The connecting end; it becomes ready when the other end's greeting comes.
  ShmPath(FileDescriptor socket, SharedMemory window, const Secret& secret,
          std::size_t remote_bytes)
      : socket_(std::move(socket)),
        window_(std::move(window)),
        remote_bytes_(remote_bytes),
        peer_(checked_peer(socket_.get())) {
    process_ = open_pidfd(peer_);
    send_greeting(socket_.get(), make_greeting(secret, probe_.address()), window_.fd());
    capabilities_.piece_bytes = kPieceBytes;
    capabilities_.why_no_pull = "only a receiver copies";
    capabilities_.pull_needs_owner = peer_ == getpid();
  }

  // The accepting end.
  ShmPath(MeetingPoint::Guest guest, SharedMemory window, const Secret& secret,
          std::size_t remote_bytes, SingleCopy single_copy, CopyPool* pool)
      : socket_(std::move(guest.socket)),
        window_(std::move(window)),
        remote_bytes_(remote_bytes),
        peer_(guest.pid) {
    join(std::move(guest.received));
    process_ = open_pidfd(peer_);
    send_greeting(socket_.get(), make_greeting(secret, probe_.address()), window_.fd());
    capabilities_.piece_bytes = kPieceBytes;
    const bool same_process = peer_ == getpid();
    if (single_copy == SingleCopy::kOff) {
      capabilities_.why_no_pull = "SINGLE_COPY is off";
    } else if (!same_process || pool != nullptr) {
      // By this process's number for the peer: the peer may know itself by another.
      ProbeAddress probe = peer_probe_;
      probe.pid = peer_;
      const std::string why_not =
          peer_ > 0 ? try_single_copy(probe) : "the peer's process cannot be seen from here";
      by_kernel_ = why_not.empty();
      if (!same_process && !by_kernel_) {
        capabilities_.why_no_pull = why_not;
        warn_of_two_copies(why_not);
      }
    }
    capabilities_.pull = capabilities_.why_no_pull.empty();
    // The kernel's copies fail safely where memory is gone, so that any thread may make them at any
    // time. A copy by this process must end before the sender frees the memory: only the calling
    // thread makes it.
    capabilities_.pull_needs_owner = capabilities_.pull && !by_kernel_;
    if (by_kernel_ && pool != nullptr) {
      pool_ = pool;
      // The last queue is the calling thread itself.
      capabilities_.queues = pool->threads() + 1;
      jobs_ = std::make_unique<CopyJob[]>(static_cast<std::size_t>(pool->threads()));
    }
  }

  ~ShmPath() override = default;
  ShmPath(const ShmPath&) = delete;
  ShmPath& operator=(const ShmPath&) = delete;

  bool ready() override {
    if (remote_) return true;
    std::optional<Received> received = receive_greeting(socket_.get());
    if (!received) return false;
    join(std::move(*received));
    return true;
  }

  [[nodiscard]] const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] std::byte* window() const override { return window_.data(); }
  [[nodiscard]] std::byte* other_window() const override { return remote_data_; }
  [[nodiscard]] int socket() const override { return socket_.get(); }

  void put(std::size_t offset, const void* data, std::size_t bytes) override {
    std::memcpy(remote_data_ + offset, data, bytes);
  }
  void put_word(std::size_t offset, std::uint64_t value) override {
    tsan_release();
    std::atomic_ref(*reinterpret_cast<std::uint64_t*>(remote_data_ + offset))
        .store(value, std::memory_order_release);
  }
  [[nodiscard]] std::uint64_t read_word(std::size_t offset) const override {
    const std::uint64_t value =
        std::atomic_ref(*reinterpret_cast<std::uint64_t*>(window_.data() + offset))
            .load(std::memory_order_acquire);
    tsan_acquire();
    return value;
  }

  void order_puts_before_reads() override { full_fence(); }

  std::uint64_t address_of(const void* data, Registration* /*registration*/) const override {
    return reinterpret_cast<std::uint64_t>(data);
  }

  // The calling CPU is the copy engine: a copy is done when it was started. Long pulls have threads
  // beside it.
  void start_write(int /*queue*/, std::size_t offset, const void* source,
                   std::size_t bytes) override {
    put(offset, source, bytes);
  }
  void start_pull(int queue, void* destination, std::uint64_t source, std::size_t bytes) override {
    if (pool_ != nullptr && queue < pool_->threads() && bytes >= kLeastForThread) {
      pool_->submit(jobs_[static_cast<std::size_t>(queue)], peer_, destination, source, bytes);
    } else if (by_kernel_) {
      read_process(peer_, destination, source, bytes);
    } else {
      // NOLINTNEXTLINE(performance-no-int-to-ptr): made by address_of in this process
      copy_in_order(destination, reinterpret_cast<const void*>(source), bytes);
    }
  }
  bool copy_done(int queue) override {
    return pool_ == nullptr || queue >= pool_->threads() ||
           jobs_[static_cast<std::size_t>(queue)].done();
  }

  std::optional<std::string> peer_lost() override {
    std::array<pollfd, 2> entries = {pollfd{socket_.get(), POLLIN | POLLRDHUP, 0},
                                     pollfd{process_.get(), POLLIN, 0}};
    if (::poll(entries.data(), process_ ? 2 : 1, 0) <= 0) return std::nullopt;
    if (process_ && entries[1].revents != 0) return "its process has ended";
    if ((entries[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0) {
      tsan_acquire();
      return "it closed the connection";
    }
    return std::nullopt;
  }
  void disconnect() noexcept override {
    tsan_release();
    shutdown(socket_.get(), SHUT_RDWR);
  }

 private:
  void join(Received received) {
    peer_probe_ = received.greeting.probe;
    remote_ = SharedMemory::map(std::move(received.window), remote_bytes_);
    remote_data_ = remote_->data();
  }

  FileDescriptor socket_;
  FileDescriptor process_;
  SharedMemory window_;
  ProcessProbe probe_;
  std::optional<SharedMemory> remote_;
  std::size_t remote_bytes_;
  std::byte* remote_data_ = nullptr;
  pid_t peer_;
  ProbeAddress peer_probe_;
  bool by_kernel_ = false;  // pulls are: process_vm_readv
  Capabilities capabilities_;
  CopyPool* pool_ = nullptr;
  std::unique_ptr<CopyJob[]> jobs_;  // one for each of the pool's queues
};

SharedMemory make_window(std::size_t bytes, ShmBacking backing) {
  SharedMemory window = SharedMemory::create(bytes, backing);
  // All of it now: a full /dev/shm must be an error here, not a SIGBUS later.
  window.reserve(0, window.size());
  return window;
}

class ShmAcceptor final : public Acceptor {
 public:
  ShmAcceptor(WindowSizes sizes, ShmBacking backing, SingleCopy single_copy, CopyPool* pool)
      : sizes_(sizes),
        backing_(backing),
        single_copy_(single_copy),
        pool_(pool),
        handle_(encode(point_.address())) {}
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<Path> accept() override {
    std::optional<MeetingPoint::Guest> guest = point_.accept();
    if (!guest) return nullptr;
    SharedMemory window = make_window(sizes_.own, backing_);
    try {
      return std::make_unique<ShmPath>(std::move(*guest), std::move(window),
                                       point_.address().secret, sizes_.other, single_copy_, pool_);
    } catch (const Error& error) {
      // That peer's connection ends with its socket; other peers are not to suffer.
      log::warn("a connection over shared memory could not be made: {}", error.what());
      return nullptr;
    }
  }

 private:
  const WindowSizes sizes_;
  const ShmBacking backing_;
  const SingleCopy single_copy_;
  CopyPool* const pool_;
  MeetingPoint point_;
  const Handle handle_;
};

class ShmDriver final : public Driver {
 public:
  explicit ShmDriver(const Config& config)
      : backing_(parse_shm_backing(config.text(Setting::kShmBacking))) {
    const std::string& single_copy = config.text(Setting::kSingleCopy);
    single_copy_ = single_copy == "off"  ? SingleCopy::kOff
                   : single_copy == "on" ? SingleCopy::kOn
                                         : SingleCopy::kAuto;
    const auto wanted = static_cast<int>(config.integer(Setting::kCopyThreads));
    copy_threads_ = wanted == 0 ? default_copy_threads() : wanted;
  }
  [[nodiscard]] std::string name() const override { return "shm"; }
  [[nodiscard]] int num_devices() const override { return 1; }
  [[nodiscard]] DeviceProperties properties(int /*device*/) const override {
    DeviceProperties properties;
    properties.name = "shm0";
    properties.speed_mbps = kSpeedMbps;
    properties.latency_us = kLatencyUs;
    return properties;
  }
  std::unique_ptr<Registration> register_memory(int /*device*/, void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return HostRegistration::make(data, bytes, kind);
  }
  std::unique_ptr<Acceptor> open_acceptor(int /*device*/, WindowSizes sizes) override {
    return std::make_unique<ShmAcceptor>(sizes, backing_, single_copy_, pool());
  }
  std::unique_ptr<Path> connect(int /*device*/, const Handle& handle, WindowSizes sizes) override {
    const std::optional<ListenerAddress> address = decode_listener_address(handle);
    if (!address) throw Error(Errc::kInvalidArgument, "shm: not a handle of a shm listener");
    return std::make_unique<ShmPath>(call(*address), make_window(sizes.own, backing_),
                                     address->secret, sizes.other);
  }

 private:
  // The threads begin with the first listener, so that a process may fork before.
  CopyPool* pool() {
    if (copy_threads_ <= 1 || single_copy_ == SingleCopy::kOff) return nullptr;
    const Lock lock(mutex_);
    if (!pool_) pool_ = std::make_unique<CopyPool>(copy_threads_ - 1);
    return pool_.get();
  }

  const ShmBacking backing_;
  SingleCopy single_copy_ = SingleCopy::kAuto;
  int copy_threads_ = 1;
  Mutex mutex_;
  std::unique_ptr<CopyPool> pool_ RW_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Driver> make_shm_driver(const Config& config) {
  return std::make_unique<ShmDriver>(config);
}

std::unique_ptr<Transport> make_shm_transport(const Config& config) {
  return make_transport(make_shm_driver(config), config);
}

}  // namespace ropewalk::transport::window
