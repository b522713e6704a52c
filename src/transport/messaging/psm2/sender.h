// The sending end of a connection over libpsm2; how messages travel is in connection.h.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "transport/messaging/psm2/connection.h"

namespace ropewalk::transport::psm2 {

class SendRequest;

class Sender final : public SendConnection, private Connection {
 public:
  Sender(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
         tcp::Linger& linger);
  ~Sender() override;
  Sender(const Sender&) = delete;
  Sender& operator=(const Sender&) = delete;
  [[nodiscard]] bool ready() override;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;
  [[nodiscard]] std::string describe() const override;

 private:
  friend class SendRequest;

  std::unique_ptr<SendRequest> start(const void* data, std::size_t bytes, std::uint32_t tag,
                                     const Registration* registration) RW_REQUIRES(port_.mutex);
  [[nodiscard]] unsigned units_of(std::size_t bytes) const;
  /// To its own endpoint: libpsm2 keeps a copy of a message without a posted receive.
  [[nodiscard]] bool to_itself() const { return peer_id_ == port_.id(); }
  /// Whether `units` more may be in flight.
  bool has_room(unsigned units) RW_REQUIRES(port_.mutex);
  /// Messages that libpsm2 has accepted count as in flight until a later probe has been matched.
  void sent(unsigned units) RW_REQUIRES(port_.mutex);
  void probe() RW_REQUIRES(port_.mutex);
  void look_at(SendRequest& request) RW_REQUIRES(port_.mutex);
  void abandon(SendRequest& request) RW_REQUIRES(port_.mutex);
  void fail_if_peer_ended() RW_REQUIRES(port_.mutex);
  bool reached() RW_REQUIRES(port_.mutex);
  void begin_trials() RW_REQUIRES(port_.mutex);

  void on_greeted() override RW_NO_THREAD_ANALYSIS;
  void on_note(const SideChannel::Received& note) override;
  void attend() override RW_NO_THREAD_ANALYSIS;
  void on_failed() override {}

  Endpoint::Peer* peer_ = nullptr;
  std::atomic<bool> verified_ = false;
  bool patterns_right_ = false;  // says the receiver
  bool stopped_ = false;         // the receiver takes no more messages
  std::uint64_t messages_ = 0;
  std::size_t active_ = 0;  // requests that are not finished
  unsigned under_way_ = 0;  // units
  unsigned unprobed_ = 0;   // of these, sent since the last probe
  unsigned probed_ = 0;     // sent before the probe that is in flight
  abi::QueueRequest* probe_ = nullptr;
  std::vector<std::byte> pattern_;
  std::vector<std::unique_ptr<SendRequest>> trials_;
};

}  // namespace ropewalk::transport::psm2
