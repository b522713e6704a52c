// The sending end of a window connection; see engine.h.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "transport/transport.h"
#include "transport/window/driver.h"
#include "transport/window/mailbox.h"

namespace ropewalk::transport::window {

struct Options {
  bool verify = true;          ///< a pattern when a connection is made
  bool checksums = false;      ///< of every message
  bool require_pull = false;   ///< SINGLE_COPY=on
  std::size_t pull_bytes = 0;  ///< smallest message that is pulled
};

class WindowSendRequest;

class WindowSender final : public SendConnection {
 public:
  WindowSender(std::unique_ptr<Path> path, Driver& driver, int device, const Options& options);
  ~WindowSender() override;
  WindowSender(const WindowSender&) = delete;
  WindowSender& operator=(const WindowSender&) = delete;
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  bool ready() override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;

 private:
  friend class WindowSendRequest;
  struct Message {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
    std::size_t next_offset = 0;                 // of the first byte not given to a queue
    std::size_t notified = 0;                    // bytes that the receiver was told of
    bool pulled = false;                         // ends with COMPLETED
    Target target;                               // where it is written directly
    const Registration* registration = nullptr;  // for that
    std::uint64_t checksum = 0;                  // of all, for that
    bool finished = false;
  };
  struct Requested {
    std::uint32_t tag;
    std::uint64_t id;
    std::uint64_t room;
    Target target;
  };
  // A piece on a copy queue, for the bounce ring or for the message's target.
  struct Piece {
    Message* message = nullptr;  // null: the queue is idle
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t position = 0;
    bool copied = false;  // and not yet notified
  };
  enum class State { kJoining, kVerifying, kAwaitingReady, kOpen };

  void progress();
  void join();
  void read_mailbox();
  void on_entry(const Entry& entry);
  void on_ready(const Entry& entry);
  void copy_pieces();
  bool start_piece(int queue);
  bool notify_copied(std::size_t& copied);
  void notify(const Piece& piece);
  // Direct writes (sender_direct.cc).
  [[nodiscard]] bool may_write(const Requested& request, const Message& message);
  void start_direct(Message& message);
  void start_direct_piece(int queue);
  void notify_direct(const Piece& piece);
  void set_writing(bool writing);
  std::optional<std::uint64_t> take_bounce(std::size_t bytes);
  void abandon(Message* message);
  void wait_for_pull() const;

  Mailbox mailbox_;
  Driver& driver_;
  const int device_;
  const Options options_;
  State state_ = State::kJoining;
  std::vector<std::byte> pattern_;
  std::size_t pattern_copies_ = 0;
  std::uint64_t secret_ = 0;
  bool may_pull_ = false;
  bool may_bounce_ = false;
  std::uint64_t bounce_taken_ = 0;  // bytes of the ring given out so far
  std::size_t active_ = 0;
  std::deque<Requested> requested_;
  std::vector<Message*> pulled_;   // waiting for COMPLETED
  std::size_t writing_ = 0;        // messages that are written directly
  std::deque<Message*> bouncing_;  // with pieces left to start
  std::vector<Piece> queues_;
  // Queues with pieces of the bounce ring, in its order: copies end in any order, and the receiver is
  // to free the ring in its own.
  std::deque<std::size_t> ring_order_;
};

}  // namespace ropewalk::transport::window
