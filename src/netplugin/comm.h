// One end of a connection as NCCL sees it: requests in flight, and memory registered for it.
//
// Threads. One of NCCL's threads starts and tests requests, another registers and deregisters
// memory at the same time; a lock keeps the two apart wherever both look. Registering itself, which
// may take long, is done outside of it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "netplugin/report.h"
#include "netplugin/slots.h"
#include "netplugin/stall_watch.h"
#include "transport/transport.h"

namespace ropewalk::netplugin {

/// Registered memory. Its messages in flight are counted under the lock of its Comm.
struct Memory {
  const void* comm = nullptr;  ///< the handle of the connection that it was registered for
  std::uint64_t base = 0;
  std::size_t bytes = 0;
  std::unique_ptr<transport::Registration> registration;
  int in_flight = 0;
};
using Memories = Slots<Memory, Kind::kMemory>;

/// One message of a call, as NCCL gives it.
struct Part {
  void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t tag = 0;
  void* memory = nullptr;  ///< handle
};

/// What test() found.
struct Outcome {
  bool done = false;
  std::size_t count = 0;               ///< of messages
  std::array<std::size_t, 8> bytes{};  ///< of each
};

class Comm {
 public:
  using Connection = std::variant<std::unique_ptr<transport::SendConnection>,
                                  std::unique_ptr<transport::ReceiveConnection>>;
  /// `now` is the clock by which a stall is noticed; tests give their own.
  Comm(Connection connection, Memories& memories, std::string name, const void* context,
       StallWatch::Now now = StallWatch::Clock::now);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  /// Its handle, once it has one.
  void set_handle(void* handle) noexcept { handle_ = handle; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] const void* context() const noexcept { return context_; }
  [[nodiscard]] bool sends() const noexcept { return connection_.index() == 0; }

  /// @return a handle
  void* register_memory(void* data, std::size_t bytes, transport::MemoryKind kind);
  /// The same for GPU memory with its dma-buf descriptor, which the caller keeps.
  void* register_dma_buf(void* data, std::size_t bytes, const transport::DmaBuf& buffer);
  /// Ends a registration of this connection. Requests that use it are given up, which breaks the
  /// connection: NCCL does so after an abort.
  void deregister(void* memory);

  /// An error that breaks the connection is thrown as Error once, from then on as KnownError.
  /// @return a request's handle; nullptr: not now
  void* send(const Part& part);
  void* receive(std::span<const Part> parts);
  /// @return nullptr when there is nothing to wait for
  void* flush(std::span<const Part> parts);
  /// @throws Error kInvalidArgument for a request that is not in flight
  Outcome test(void* request);

 private:
  static constexpr std::size_t kMostInFlight = 64;  // for requests and flushes
  static constexpr std::size_t kGroup = 8;
  struct InFlight {
    std::unique_ptr<transport::Request> request;
    std::uint32_t generation = 0;
    std::size_t count = 0;
    std::array<Memory*, kGroup> memories{};
  };

  Memory& memory_of(const Part& part) RW_REQUIRES(mutex_);
  void* add_memory(void* data, std::size_t bytes,
                   std::unique_ptr<transport::Registration> registration);
  void* keep(std::unique_ptr<transport::Request> request, std::span<Memory* const> memories)
      RW_REQUIRES(mutex_);
  void release(std::size_t index) RW_REQUIRES(mutex_);
  void throw_if_broken() RW_REQUIRES(mutex_);
  [[noreturn]] void broke(const Error& error) RW_REQUIRES(mutex_);
  // A message could not be started, or has not arrived: logs it once when that lasts long.
  void waits() RW_REQUIRES(mutex_);
  [[nodiscard]] bool full() const RW_REQUIRES(mutex_) { return free_ == 0; }

  Connection connection_;
  Memories& all_memories_;
  const std::string name_;
  const void* const context_;
  void* handle_ = nullptr;
  Mutex mutex_;
  std::array<InFlight, kMostInFlight> in_flight_ RW_GUARDED_BY(mutex_);
  std::uint64_t free_ RW_GUARDED_BY(mutex_) = ~std::uint64_t{0};  // a bit for each of in_flight_
  std::vector<void*> memories_ RW_GUARDED_BY(mutex_);
  std::optional<Error> broken_ RW_GUARDED_BY(mutex_);
  StallWatch stall_ RW_GUARDED_BY(mutex_);
};
using Comms = Slots<Comm, Kind::kComm>;

/// The connection that a request belongs to.
/// @throws Error kInvalidArgument
Comm& comm_of_request(const Comms& comms, const void* request);

}  // namespace ropewalk::netplugin
