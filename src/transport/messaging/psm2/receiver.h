// The receiving end of a connection over libpsm2; how messages travel is in connection.h.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/messaging/psm2/connection.h"
#include "transport/receive_request.h"

namespace ropewalk::transport::psm2 {

class Receiver final : public ReceiveConnection, private Connection {
 public:
  Receiver(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
           tcp::Linger& linger);
  ~Receiver() override;
  Receiver(const Receiver&) = delete;
  Receiver& operator=(const Receiver&) = delete;
  [[nodiscard]] bool ready() override;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;
  [[nodiscard]] std::string describe() const override;

 private:
  friend class ReceiveRequest<Receiver>;
  struct Posted {
    ReceiveBuffer buffer;
    std::size_t bytes = 0;  // of the message, once known
    abi::QueueRequest* queued = nullptr;
    std::atomic<bool> finished = false;
  };
  struct Trials {
    std::vector<std::byte> memory;
    std::array<Posted, kPatternBytes.size()> posted;
  };

  void post(Posted& posted);
  void withdraw(Posted& posted);
  void progress(std::span<Posted> posted);
  void throw_if_failed();

  void post_locked(Posted& posted) RW_REQUIRES(port_.mutex);
  void withdraw_locked(Posted& posted) RW_REQUIRES(port_.mutex);
  [[nodiscard]] abi::Tag tag_of(const Posted& posted) const;
  void start(Posted& posted) RW_REQUIRES(port_.mutex);
  /// With VERIFY=all: starts a receive if its message is there; those of all that have theirs.
  bool take_what_came(Posted& posted) RW_REQUIRES(port_.mutex);
  void take_what_came(std::span<Posted* const> all) RW_REQUIRES(port_.mutex);
  void look_at(Posted& posted) RW_REQUIRES(port_.mutex);
  /// Of a message that has come, with VERIFY=all. One that is wrong fails the connection.
  [[nodiscard]] bool checksum_is(std::uint32_t expected, const Posted& posted)
      RW_REQUIRES(port_.mutex);
  void judge_trials() RW_REQUIRES(port_.mutex);
  void attend_probe() RW_REQUIRES(port_.mutex);
  /// Cancels the receives that libpsm2 gives back. @return whether those were all
  bool withdraw_all() RW_REQUIRES(port_.mutex);
  void tell_stopped() RW_REQUIRES(port_.mutex);
  /// The sender has ended, and nothing of its is to come any more.
  [[nodiscard]] bool exhausted() RW_REQUIRES(port_.mutex);
  [[nodiscard]] std::string why_exhausted() const;

  void on_greeted() override RW_NO_THREAD_ANALYSIS;
  void on_note(const SideChannel::Received& note) override RW_NO_THREAD_ANALYSIS;
  void attend() override RW_NO_THREAD_ANALYSIS;
  void on_failed() override RW_NO_THREAD_ANALYSIS;

  std::atomic<bool> ready_ = false;
  bool stopped_told_ = false;
  std::optional<std::uint64_t> total_;  // messages that the sender has sent until its end
  std::uint64_t arrived_ = 0;
  std::uint32_t sent_ = 0;  // messages, as the last probe said
  std::size_t active_ = 0;
  std::vector<Posted*> posted_;  // not finished, in order
  abi::QueueRequest* probe_ = nullptr;
  std::unique_ptr<Trials> trials_;
};

}  // namespace ropewalk::transport::psm2
