// The receiving end of a window connection; see engine.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/receive_request.h"
#include "transport/transport.h"
#include "transport/window/driver.h"
#include "transport/window/mailbox.h"
#include "transport/window/sender.h"

namespace ropewalk::transport::window {

class WindowReceiver final : public ReceiveConnection {
 public:
  WindowReceiver(std::unique_ptr<Path> path, Driver& driver, int device, const Options& options);
  ~WindowReceiver() override;
  WindowReceiver(const WindowReceiver&) = delete;
  WindowReceiver& operator=(const WindowReceiver&) = delete;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  bool ready() override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;

  [[nodiscard]] std::string describe() const override;

 private:
  friend class ReceiveRequest<WindowReceiver>;
  struct Posted {
    ReceiveBuffer buffer;
    std::uint64_t id = 0;
    std::size_t bytes = 0;    // of the message, once known
    std::size_t arrived = 0;  // of them, by pieces or pulls
    bool started = false;     // the message's size is known
    bool finished = false;
    bool target = false;         // the sender may write it directly
    std::uint32_t location = 0;  // of the buffer
    // Of a message that is pulled.
    std::uint64_t source = 0;
    std::uint64_t key = 0;  // of the sender's registration; 0: the CPU's memory
    std::uint64_t checksum = 0;
    std::size_t next_offset = 0;
  };
  // A pull on a copy queue.
  struct Pull {
    Posted* posted = nullptr;  // null: the queue is idle
    std::size_t bytes = 0;
  };
  // A range of the bounce ring's positions: with what was skipped before it, and after it.
  struct RingRange {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;
  };
  // A piece in the bounce ring that goes to device memory.
  struct StagedPiece {
    Posted* posted = nullptr;
    std::size_t offset = 0;  // in the message
    std::size_t bytes = 0;
    std::size_t location = 0;  // in the ring
    RingRange range;
    std::uint64_t checksum = 0;
  };
  // A copy on a queue for device memory: of a staged piece, or of a part of a pulled message.
  struct DeviceCopy {
    Posted* posted = nullptr;  // null: the queue is idle
    std::size_t bytes = 0;
    std::optional<StagedPiece> staged;
  };

  void progress();
  void throw_if_failed() const { mailbox_.throw_if_failed(); }
  void read_mailbox(std::size_t limit_bytes);
  void on_entry(const Entry& entry);
  void on_verify(const Entry& entry);
  void answer_verify();
  void tell_ready(bool may_pull, bool may_bounce);
  void on_inline(const Entry& entry, Posted& posted);
  void on_piece(const Entry& entry, Posted& posted);
  void pull_pieces();
  // Direct writes (receiver_direct.cc).
  void state_target(Posted& posted, Entry& entry);
  void on_direct(const Entry& entry, Posted& posted);
  void end_direct_writes(const Posted& posted);
  void on_try(const Entry& entry);
  void on_tried(const Entry& entry);
  void post(Posted& posted);
  void withdraw(Posted& posted);
  void finish(Posted& posted);
  void set_pulling(bool pulling);
  [[nodiscard]] bool reading() const;
  Posted* by_id(std::uint64_t id);
  void senseless();
  void free_ring(const RingRange& range);
  void finish_pull(Posted& posted);
  bool abandoned();
  [[nodiscard]] std::uint64_t sum_of(const Posted& posted, std::size_t offset,
                                     std::size_t bytes) const;

  // receiver_device.cc
  [[nodiscard]] std::uint32_t location_of(const ReceiveBuffer& buffer) const;
  [[nodiscard]] DevicePulls* device_pulling() const;
  void copy_device_pieces();
  void advance_device_queues();
  [[nodiscard]] bool staging() const;
  bool finish_device_copy(std::size_t queue);
  bool start_device_copy(std::size_t queue);
  void withdraw_device(const Posted& posted);
  void on_offer(const Entry& entry);
  void answer_pull();
  void answer_stage(const Entry& offer);
  void answer(const Entry& offer, bool yes);
  static std::string try_pattern(const Entry& offer,
                                 const std::function<void(std::span<std::byte>)>& copy);

  Mailbox mailbox_;
  Driver& driver_;
  const int device_;
  const Options options_;
  std::uint64_t next_id_ = 1;
  std::size_t active_ = 0;
  std::size_t copied_ = 0;  // bytes in this call
  std::vector<Posted*> posted_;
  std::deque<Posted*> pulls_;  // with pieces left to start
  std::vector<Pull> queues_;
  // While a connection is verified: the sender's entry, and what its pull brought.
  bool verifying_ = false;
  bool open_ = false;  // the sender has accepted what this end found
  Entry verify_;
  std::string bounce_failure_;
  std::vector<std::byte> pulled_pattern_;
  // The bounce ring: up to where it was copied out, and ranges beyond that (begin, end).
  std::uint64_t freed_ = 0;
  std::map<std::uint64_t, std::uint64_t> freed_early_;
  // Device memory.
  std::deque<Posted*> device_pulls_;  // with pieces left to start
  std::deque<StagedPiece> staged_;
  std::vector<DeviceCopy> device_queues_;
  std::optional<Entry> offer_;                          // not answered
  std::map<std::uint64_t, std::string> pull_verdicts_;  // by locations: what a pattern showed
  std::string pull_failure_;                            // the last
};

}  // namespace ropewalk::transport::window
