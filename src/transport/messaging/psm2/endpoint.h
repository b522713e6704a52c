// A libpsm2 endpoint with its message queue, which connections share or have to themselves.
//
// Endpoints are opened when one is first needed, used again by later connections, and live until
// the process ends: closing one takes libpsm2 up to two seconds when a peer does not answer, and
// its own exit handler removes what it has in /dev/shm.
//
// Sending through libpsm2's shared memory spins inside the library once the receiving endpoint's
// queue is full (1024 small packets or 256 of 8 KiB, all senders together) until the receiver's
// process polls. So that no call here ever waits for a peer, each connection to an endpoint gets a
// window, and the windows together are smaller than the queue.
//
// Threads: all but what is marked with `mutex` held. libpsm2 promises safety only for different
// endpoints in different threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/fork.h"
#include "transport/messaging/psm2/devices.h"
#include "transport/messaging/psm2/library.h"
#include "transport/messaging/psm2/spin_mutex.h"

namespace ropewalk::transport::psm2 {

/// What an endpoint calls: a connection's end.
class Member {
 public:
  virtual ~Member() = default;
  /// The endpoint is not used any more.
  virtual void on_retired(const std::string& reason) = 0;
  /// Another end waits for its peer, which may be this one.
  virtual void on_wait() = 0;
};

/// An entry of a receive queue: a small packet takes one, a packet of 8 KiB four.
inline constexpr unsigned kPacketUnits = 1;
inline constexpr unsigned kPieceUnits = 4;

class Endpoint {
 public:
  /// @throws Error kSystem in libpsm2's words
  Endpoint(std::shared_ptr<const Library> library, const Device& device, bool shared);
  Endpoint(const Endpoint&) = delete;
  Endpoint& operator=(const Endpoint&) = delete;

  SpinMutex mutex;

  // Any thread, without the mutex.
  [[nodiscard]] const Library& library() const noexcept { return *library_; }
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] abi::EndpointId id() const noexcept { return id_; }
  [[nodiscard]] bool shared() const noexcept { return shared_; }
  [[nodiscard]] bool retired() const noexcept { return retired_; }
  /// A helper thread may hold the mutex until a peer has answered.
  [[nodiscard]] bool connecting() const noexcept { return connecting_ > 0; }
  /// Whether another connection may use it, in this process.
  [[nodiscard]] bool has_room() const noexcept;
  /// A peer's process died with which it shares memory: what that was putting into this endpoint's
  /// queue may block it, so that no further connection begins here.
  void let_run_out() noexcept { runs_out_ = true; }

  // Any thread. The pool's.
  std::atomic<int> users = 0;
  /// Connections that are being made: a helper thread polls meanwhile.
  std::atomic<int> in_setup = 0;

  void add(Member& member) RW_REQUIRES(mutex);
  void remove(Member& member) RW_REQUIRES(mutex);
  /// A number for a receiving end, below 2^15: one that was given back is taken again as late as
  /// possible.
  std::uint32_t take_number() RW_REQUIRES(mutex);
  void give_number(std::uint32_t number) RW_REQUIRES(mutex) { numbers_.erase(number); }
  /// A receiving end has ended: libpsm2 would keep what comes for it, so that it is received and
  /// dropped, now and when others end. Not long messages, whose senders are told by their
  /// connections.
  void drop_messages_to(std::uint32_t identity) RW_REQUIRES(mutex);
  /// The window of one sender to this endpoint. To be returned.
  unsigned take_window() RW_REQUIRES(mutex);
  void give_window(unsigned units) RW_REQUIRES(mutex);

  // Connecting to a peer's endpoint, by a helper thread: once for each peer.
  enum class Reach { kUnknown, kUnderWay, kConnected, kFailed };
  struct Peer {
    Reach reach = Reach::kUnknown;
    abi::Address* address = nullptr;
    std::string why_failed;
    bool wanted = true;  ///< false: nobody waits for it any more
  };
  /// Not moved while the endpoint lives.
  Peer& peer(abi::EndpointId id) RW_REQUIRES(mutex) { return peers_[id]; }
  /// Lets a helper thread connect, unless that is done or in progress.
  void reach(abi::EndpointId id) RW_REQUIRES(mutex);
  /// A helper thread's. Waits, 2 s at most.
  /// @return false: try again
  bool connect(abi::EndpointId id) RW_REQUIRES(mutex);

  /// Whether messages to and from that endpoint go through this host's memory.
  [[nodiscard]] bool shares_memory(abi::EndpointId id) const RW_REQUIRES(mutex);

  /// Makes progress.
  /// @return whether there was any
  bool poll() RW_REQUIRES(mutex);
  /// As poll(), and polls the side channels of all connections. Does the same for the other
  /// endpoints of this process that are not in use: the peer may be one of theirs.
  void poll_all() RW_REQUIRES(mutex);
  void look_at_sides() RW_REQUIRES(mutex);

  // With retired() none of these does anything: false, and the request is left alone.
  abi::Error send(abi::Address* to, const abi::Tag& tag, const void* data, std::size_t bytes)
      RW_REQUIRES(mutex);
  abi::Error start_send(abi::Address* to, std::uint32_t flags, const abi::Tag& tag,
                        const void* data, std::size_t bytes, abi::QueueRequest*& request)
      RW_REQUIRES(mutex);
  abi::Error start_receive(const abi::Tag& tag, const abi::Tag& mask, std::uint32_t flags,
                           void* data, std::size_t bytes, abi::QueueRequest*& request)
      RW_REQUIRES(mutex);
  /// Whether a message without a posted receive has arrived, and its description.
  bool has_come(const abi::Tag& tag, const abi::Tag& mask, abi::Status& status) RW_REQUIRES(mutex);
  /// @return whether it has ended; then it is null
  bool ended(abi::QueueRequest*& request, abi::Status& status) RW_REQUIRES(mutex);
  /// Cancels a receive.
  /// @return whether it was cancelled
  bool withdraw(abi::QueueRequest*& request) RW_REQUIRES(mutex);
  /// errno of a copy into this memory that failed, or 0. Asked once.
  int failed_copy(const void* data, std::size_t bytes) RW_REQUIRES(mutex);

  /// Never uses it again: the only method to end requests that libpsm2 does not release.
  void retire(const std::string& reason) RW_REQUIRES(mutex);

 private:
  void open();
  void collect_failed_copies() RW_REQUIRES(mutex);

  const Belonging belonging_;
  const std::shared_ptr<const Library> library_;
  const Device device_;
  const bool shared_;
  abi::Endpoint* endpoint_ = nullptr;
  abi::Queue* queue_ = nullptr;
  abi::EndpointId id_ = 0;
  FileDescriptor file_{-1};  // its shared memory, locked
  std::atomic<bool> retired_ = false;
  std::atomic<bool> runs_out_ = false;
  std::atomic<int> connecting_ = 0;
  std::atomic<unsigned> free_units_;
  std::uint32_t last_number_ RW_GUARDED_BY(mutex) = 0;
  std::set<std::uint32_t> numbers_ RW_GUARDED_BY(mutex);
  std::deque<std::uint32_t> ended_ RW_GUARDED_BY(mutex);  // the receiving ends that ended last
  std::vector<Member*> members_ RW_GUARDED_BY(mutex);
  std::map<abi::EndpointId, Peer> peers_ RW_GUARDED_BY(mutex);
  std::vector<Library::FailedCopy> failed_copies_ RW_GUARDED_BY(mutex);
};

/// An endpoint for one connection, from this process's pool.
class Lease {
 public:
  /// @throws Error kSystem when one must be opened and cannot be
  Lease(const std::shared_ptr<const Library>& library, const Device& device, bool shared);
  Lease(Lease&& other) noexcept : endpoint_(other.endpoint_) { other.endpoint_ = nullptr; }
  Lease& operator=(Lease&&) = delete;
  ~Lease() {
    if (endpoint_ != nullptr) --endpoint_->users;
  }
  Endpoint& operator*() const noexcept { return *endpoint_; }

 private:
  Endpoint* endpoint_;
};

}  // namespace ropewalk::transport::psm2
