// The sending end of a window connection; see engine.h.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transport/transport.h"
#include "transport/window/driver.h"
#include "transport/window/mailbox.h"

namespace ropewalk::transport::window {

/// The setting VERIFY, in the order of its choices. Both ends of a connection must have the same:
/// what one end trusts unseen, the other may have found to be broken.
enum class Verify : std::uint64_t { kOff, kConnect, kAll };
/// As the setting has it; "unknown" for a value that a peer of another build sent.
std::string_view name(Verify verify) noexcept;

struct Options {
  bool verify = true;          ///< a pattern when a connection is made
  bool checksums = false;      ///< of every message
  bool require_pull = false;   ///< SINGLE_COPY=on
  std::size_t pull_bytes = 0;  ///< smallest message that is pulled

  [[nodiscard]] Verify level() const noexcept {
    return checksums ? Verify::kAll : verify ? Verify::kConnect : Verify::kOff;
  }
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

  [[nodiscard]] std::string describe() const override;

 private:
  friend class WindowSendRequest;
  struct Message {
    const std::byte* data = nullptr;
    std::size_t bytes = 0;
    std::uint64_t id = 0;
    std::size_t next_offset = 0;                 // of the first byte not given to a queue
    std::size_t notified = 0;                    // bytes that the receiver was told of
    const Registration* device = nullptr;        // of device memory; else the CPU's
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
    std::uint32_t location;
    Target target;
  };
  // How a message goes that is not from the CPU's memory into the CPU's.
  enum class Method { kUnknown, kDirect, kPulled, kStaged };
  // Whether memory can be pulled into a location, or messages staged or written between two.
  struct CapabilityProbe {
    std::uint64_t key = kStaging;
    std::uint64_t locations = 0;   // this end's, shifted by 32, and the other's
    std::optional<Target> target;  // of a pattern, until that is written
    std::optional<bool> answer;
  };
  // A piece on a copy queue, for the bounce ring or for the message's target.
  struct Piece {
    Message* message = nullptr;  // null: the queue is idle
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t position = 0;
    std::uint32_t skipped = 0;  // bytes of the ring before it that nothing uses
  };
  enum class State { kJoining, kVerifying, kAwaitingReady, kOpen };

  void progress();
  void join();
  void read_mailbox();
  void on_entry(const Entry& entry);
  void on_ready(const Entry& entry);
  void copy_pieces();
  bool start_piece(std::size_t queue);
  [[nodiscard]] bool queue_done(std::size_t queue);
  void notify(const Piece& piece);
  void finish(Message& message);
  bool take_bounce(std::size_t bytes, Piece& piece);
  [[nodiscard]] std::uint64_t sum_of(const Message& message, std::size_t offset,
                                     std::size_t bytes) const;

  // Direct writes (sender_direct.cc).
  [[nodiscard]] bool may_write(const Requested& request, const void* data, std::size_t bytes,
                               const Registration* registration);
  void start_direct(Message& message);
  void start_direct_piece(std::size_t queue);
  void notify_direct(const Piece& piece);
  void set_writing(bool writing);

  // sender_device.cc
  [[nodiscard]] std::uint32_t location_of(const Registration* registration, const void* data,
                                          std::size_t bytes) const;
  Method method(const Requested& request, const void* data, std::size_t bytes,
                std::uint32_t location, const Registration* registration);
  std::optional<bool> ask(std::uint64_t key, const Registration* source, std::uint64_t locations);
  CapabilityProbe* probe(std::uint64_t key, std::uint64_t locations);
  bool offer(CapabilityProbe& probe, const Registration* source);
  bool offer_pull(CapabilityProbe& probe, const Registration& source);
  bool offer_stage(CapabilityProbe& probe, const Registration* source);
  bool offer_direct(CapabilityProbe& probe);
  void try_direct();
  bool on_answer(const Entry& entry);
  bool on_target(const Entry& entry);
  void abandon(Message* message);
  void wait_for_pull(std::optional<std::chrono::milliseconds> longest) const;

  Mailbox mailbox_;
  Driver& driver_;
  const int device_;
  const Options options_;
  State state_ = State::kJoining;
  std::span<const std::byte> pattern_;
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
  std::vector<Piece> queues_;      // the path's, then those for device memory
  std::size_t path_queues_ = 0;
  std::vector<CapabilityProbe> probes_;
  bool offering_ = false;               // a probe is not answered
  std::vector<std::uint64_t> checked_;  // locations between which a pattern was sent to be pulled
};

}  // namespace ropewalk::transport::window
