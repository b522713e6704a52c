// The layout of windows, and the mailboxes in them.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "core/pacer.h"
#include "transport/window/driver.h"

namespace ropewalk::transport::window {

inline constexpr std::size_t kMaxRequests = 32;
inline constexpr std::size_t kMaxGroup = 8;

// The most entries that can be unread: every receive's request, a COMPLETED of every send, READY
// and ANSWER or TARGET one way; a SEND_NOTIFIED of every receive, all pieces in the bounce ring,
// VERIFY, OPEN, and OFFER, TRY or TRIED the other.
inline constexpr std::size_t kRingEntries = 512;
inline constexpr std::size_t kBounceBytes = 512 << 10;
inline constexpr std::size_t kBouncePieceBytes = 64 << 10;
static_assert(kRingEntries >
              kMaxRequests * kMaxGroup + kMaxRequests + kBounceBytes / kBouncePieceBytes + 3);

inline constexpr std::size_t kEntryBytes = 64;

// Words at the start of both ends' windows, a cache line each.
inline constexpr std::size_t kAbandonedWord = 0;  ///< the other end gave up its memory
inline constexpr std::size_t kFreedWord = 64;     ///< sender's: bounce bytes that were copied out
inline constexpr std::size_t kPullingWord = 128;  ///< sender's: the receiver is in a pull
inline constexpr std::size_t kWritingWord = 192;  ///< receiver's: the sender is in a direct write
inline constexpr std::size_t kRingOffset = 4096;
inline constexpr std::size_t kBounceOffset = kRingOffset + kRingEntries * kEntryBytes;
inline constexpr std::size_t kSenderWindowBytes = kBounceOffset;
inline constexpr std::size_t kReceiverWindowBytes = kBounceOffset + kBounceBytes;

enum class Command : std::uint32_t {
  kVerify = 1,     ///< sender: payload = {VERIFY, pattern's address, its checksum, a random word}
  kReady,          ///< receiver: payload = {may pull, may bounce, VERIFY, the random word}
  kRecvRequested,  ///< receiver: id, tag, bytes = room; payload = {location, target of direct
                   ///< writes}
  kSendInline,     ///< sender: id, bytes; payload = the message
  kSendPiece,      ///< sender: id, bytes of all, tag = skipped bytes of the ring before it;
                   ///< payload = {offset, bytes, position, checksum}
  kSendPull,       ///< sender: id, bytes; payload = {address or offset, key or 0, 0, checksum}
  kCompleted,      ///< receiver: id of the message that was pulled
  kTooLong,        ///< sender: id, bytes; the message does not fit
  kSendDirect,     ///< sender: id, bytes, which are in the target; payload = {0, 0, 0, checksum}
  kOpen,           ///< sender: it has accepted READY
  kOffer,   ///< sender: id = locations (its own above), bytes of a pattern or 0. To pull: payload
            ///< = {key, pattern's key, 0, checksum}. To stage: tag = skipped before the
            ///< pattern in the ring, payload = {0, 0, position, checksum}
  kAnswer,  ///< receiver: id as in the offer; payload = {key, yes or no}
  kTry,     ///< sender: id = locations, between which it would write directly
  kTarget,  ///< receiver: id as in TRY; payload = {0, target of the pattern}
  kTried,   ///< sender: id, bytes of the pattern; payload = {kWriting, 0, 0, checksum}; is answered
};

struct Entry {
  Command command{};
  std::uint32_t tag = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::array<std::uint64_t, 4> payload{};
};
/// What an answer is about, where not a key of DevicePulls: staging, writing directly.
inline constexpr std::uint64_t kStaging = 0;
inline constexpr std::uint64_t kWriting = ~std::uint64_t{0};
inline constexpr std::size_t kInlineBytes = sizeof(Entry::payload);
static_assert(sizeof(Entry) == kEntryBytes - sizeof(std::uint64_t));

/// Both mailboxes of one end, and the end's state of being broken.
class Mailbox {
 public:
  Mailbox(std::unique_ptr<Path> path, std::string name);
  ~Mailbox();
  Mailbox(const Mailbox&) = delete;
  Mailbox& operator=(const Mailbox&) = delete;

  void write(const Entry& entry);
  /// The next entry that the other end wrote.
  std::optional<Entry> read();
  /// To be called when read() found nothing: looks, now and then, whether the other end is there.
  /// @return true when it is gone; what it wrote before may still be read
  bool idle_and_lost();

  void fail(Errc code, const std::string& reason);
  [[nodiscard]] bool failed() const noexcept { return error_.has_value(); }
  void throw_if_failed() const;

  [[nodiscard]] Path& path() const noexcept { return *path_; }
  [[nodiscard]] const std::string& lost() const noexcept { return lost_; }

 private:
  [[nodiscard]] std::uint64_t last_word(const Entry& entry, std::uint64_t number) const;
  bool whole(const Entry& entry, std::uint64_t word);

  std::unique_ptr<Path> path_;
  std::string name_;
  std::optional<std::chrono::steady_clock::time_point> torn_since_;  // the next entry is not whole
  std::uint64_t written_ = 0;
  std::uint64_t read_ = 0;
  Pacer looks_;  // at the other end
  std::string lost_;
  std::optional<Error> error_;
};

}  // namespace ropewalk::transport::window
