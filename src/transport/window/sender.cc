#include "transport/window/sender.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <thread>
#include <utility>

#include "core/log.h"
#include "core/random.h"
#include "transport/checksum.h"
#include "transport/simple_requests.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {
namespace {

constexpr std::size_t kSendLimitBytes = std::size_t{1} << 20;
// The copies that a receiver has under way take a fraction of it.
constexpr auto kDevicePullTime = std::chrono::milliseconds(20);

// The pattern of a new connection: a piece, at random, of one block that lives as long as the
// process. A receiver of this process may still be copying it when its sender is closed.
std::span<const std::byte> random_pattern() {
  constexpr std::size_t kPieces = 64;
  static const auto block = [] {
    std::array<std::byte, 2 * kPatternBytes> made;
    fill_random(made);
    return made;
  }();
  std::uint8_t piece = 0;
  fill_random(std::as_writable_bytes(std::span(&piece, 1)));
  return std::span(block).subspan(piece % kPieces * (kPatternBytes / kPieces), kPatternBytes);
}

std::size_t whole_lines(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

std::string_view name(Verify verify) noexcept {
  switch (verify) {
    case Verify::kOff: return "off";
    case Verify::kConnect: return "connect";
    case Verify::kAll: return "all";
  }
  return "unknown";
}

class WindowSendRequest final : public Request {
 public:
  WindowSendRequest(WindowSender& sender, const WindowSender::Message& started)
      : message(started), sender_(sender), sizes_{started.bytes} {
    ++sender_.active_;
  }
  WindowSendRequest(const WindowSendRequest&) = delete;
  WindowSendRequest& operator=(const WindowSendRequest&) = delete;
  ~WindowSendRequest() override {
    --sender_.active_;
    if (!message.finished) sender_.abandon(&message);
  }
  std::optional<std::size_t> test() override {
    if (!message.finished) {
      sender_.progress();
      if (!message.finished) {
        sender_.mailbox_.throw_if_failed();
        return std::nullopt;
      }
    }
    return message.bytes;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return sizes_; }

  WindowSender::Message message;

 private:
  WindowSender& sender_;
  std::array<std::size_t, 1> sizes_;
};

WindowSender::WindowSender(std::unique_ptr<Path> path, Driver& driver, int device,
                           const Options& options)
    : mailbox_(std::move(path), driver.name() + " connection to a receiver"),
      driver_(driver),
      device_(device),
      options_(options) {}

WindowSender::~WindowSender() = default;

std::unique_ptr<Registration> WindowSender::register_memory(void* data, std::size_t bytes,
                                                            MemoryKind kind) {
  std::unique_ptr<Registration> made = driver_.register_memory(device_, data, bytes, kind);
  DeviceCopies* copies = mailbox_.path().device_copies();
  if (copies != nullptr && made->kind() != MemoryKind::kHost) copies->prepare(*made, false);
  return made;
}

bool WindowSender::ready() {
  if (state_ != State::kOpen) progress();
  mailbox_.throw_if_failed();
  return state_ == State::kOpen;
}

std::string WindowSender::describe() const {
  if (state_ != State::kOpen) return "it is being verified";
  const auto asked = std::count_if(probes_.begin(), probes_.end(),
                                   [](const CapabilityProbe& probe) { return !probe.answer; });
  return fmt::format(
      "{} messages under way, {} of them to be pulled and {} with pieces to copy; the receiver "
      "waits for {} more, {} of them into device memory; {} of {} capability probes not "
      "answered",
      active_, pulled_.size(), bouncing_.size(), requested_.size(),
      std::count_if(requested_.begin(), requested_.end(),
                    [](const Requested& request) { return request.location != 0; }),
      asked, probes_.size());
}

std::unique_ptr<Request> WindowSender::send(const void* data, std::size_t bytes, std::uint32_t tag,
                                            Registration* registration) {
  check_buffer(data, bytes, kMaxMessageBytes);
  mailbox_.throw_if_failed();
  const std::uint32_t location = location_of(registration, data, bytes);
  auto match = requested_.end();
  const auto find = [&] {
    if (state_ != State::kOpen) return false;
    match = std::find_if(requested_.begin(), requested_.end(),
                         [&](const Requested& entry) { return entry.tag == tag; });
    return match != requested_.end();
  };
  if (active_ >= kMaxRequests || !find()) {
    progress();
    mailbox_.throw_if_failed();
    if (active_ >= kMaxRequests || !find()) return nullptr;
  }
  const Requested request = *match;
  const bool device =
      (location != 0 || request.location != 0) && bytes > 0 && bytes <= request.room;
  const Method taken =
      device ? method(request, data, bytes, location, registration) : Method::kUnknown;
  if (device && taken == Method::kUnknown) {
    mailbox_.throw_if_failed();
    return nullptr;  // until the receiver has answered how
  }
  if (device) (void)find();  // more requests may have come meanwhile
  requested_.erase(match);

  Entry entry;
  entry.id = request.id;
  entry.bytes = bytes;
  if (bytes > request.room) {
    entry.command = Command::kTooLong;
    mailbox_.write(entry);
    mailbox_.fail(Errc::kInvalidUsage,
                  fmt::format("a message of {} bytes (tag {}) was sent for a receive of {} bytes",
                              bytes, tag, request.room));
    mailbox_.throw_if_failed();
  }
  Message message;
  message.data = static_cast<const std::byte*>(data);
  message.bytes = bytes;
  message.id = request.id;
  message.registration = registration;
  message.device = location != 0 ? registration : nullptr;
  auto started = std::make_unique<WindowSendRequest>(*this, message);
  Message& mine = started->message;

  const std::size_t inline_bytes = kInlineBytes - (options_.checksums ? sizeof(std::uint64_t) : 0);
  if (device
          ? taken == Method::kPulled
          : bytes > inline_bytes && may_pull_ && (bytes >= options_.pull_bytes || !may_bounce_)) {
    entry.command = Command::kSendPull;
    if (device) {
      DevicePulls& pulls = *mailbox_.path().device_copies()->pulls();
      entry.payload[0] = pulls.offset(*registration, data);
      entry.payload[1] = pulls.key(*registration);
    } else {
      entry.payload[0] = mailbox_.path().address_of(data, registration);
    }
    if (options_.checksums) entry.payload[3] = sum_of(mine, 0, bytes);
    mine.pulled = true;
    pulled_.push_back(&mine);
    mailbox_.write(entry);
  } else if (!device && bytes <= inline_bytes) {
    entry.command = Command::kSendInline;
    if (bytes > 0) std::memcpy(entry.payload.data(), data, bytes);
    if (options_.checksums) entry.payload[3] = wire_checksum(data, bytes);
    entry.tag = options_.checksums ? 1 : 0;
    mailbox_.write(entry);
    finish(mine);
    mailbox_.throw_if_failed();
  } else {
    if (device ? taken == Method::kDirect : may_write(request, data, bytes, registration)) {
      mine.target = request.target;
      start_direct(mine);
      mailbox_.throw_if_failed();
    }
    bouncing_.push_back(&mine);
    copy_pieces();
  }
  return started;
}

void WindowSender::progress() {
  if (mailbox_.failed()) return;
  try {
    if (state_ == State::kJoining || state_ == State::kVerifying) join();
    if (state_ == State::kJoining) return;
    read_mailbox();
    if (!mailbox_.failed() && mailbox_.idle_and_lost()) {
      read_mailbox();  // its last words were written before it went
      mailbox_.fail(Errc::kPeerLost, mailbox_.lost());
    }
    if (mailbox_.failed()) return;
    if (offering_) try_direct();
    copy_pieces();
  } catch (const Error& error) {
    mailbox_.fail(error.code(), error.what());
  }
}

void WindowSender::read_mailbox() {
  while (!mailbox_.failed()) {
    const std::optional<Entry> entry = mailbox_.read();
    if (!entry) return;
    on_entry(*entry);
  }
}

void WindowSender::join() {
  Path& path = mailbox_.path();
  if (state_ == State::kJoining) {
    if (!path.ready()) return;
    path_queues_ = static_cast<std::size_t>(path.capabilities().queues);
    const DeviceCopies* device = path.device_copies();
    queues_.resize(path_queues_ +
                   (device != nullptr ? static_cast<std::size_t>(device->queues()) : 0));
    fill_random(std::as_writable_bytes(std::span(&secret_, 1)));
    pattern_ = random_pattern();
    state_ = State::kVerifying;
    if (options_.verify) path.start_write(0, pattern_offset(0), pattern_.data(), kPatternBytes);
  }
  if (options_.verify) {
    while (pattern_copies_ < kPatternCopies) {
      if (!path.copy_done(0)) return;
      if (++pattern_copies_ < kPatternCopies) {
        path.start_write(0, pattern_offset(pattern_copies_), pattern_.data(), kPatternBytes);
      }
    }
  }
  Entry entry;
  entry.command = Command::kVerify;
  entry.payload = {static_cast<std::uint64_t>(options_.level()),
                   path.address_of(pattern_.data(), nullptr),
                   checksum(pattern_.data(), kPatternBytes), secret_};
  mailbox_.write(entry);
  state_ = State::kAwaitingReady;
}

void WindowSender::on_entry(const Entry& entry) {
  switch (entry.command) {
    case Command::kReady: on_ready(entry); return;
    case Command::kAnswer:
      if (on_answer(entry)) return;
      break;
    case Command::kTarget:
      if (on_target(entry)) return;
      break;
    case Command::kRecvRequested:
      if (requested_.size() < kMaxRequests * kMaxGroup) {
        requested_.push_back({entry.tag, entry.id, entry.bytes,
                              static_cast<std::uint32_t>(entry.payload[0]),
                              Target{entry.payload[1], entry.payload[2]}});
        return;
      }
      break;
    case Command::kCompleted: {
      const auto found = std::find_if(pulled_.begin(), pulled_.end(), [&](const Message* message) {
        return message->id == entry.id;
      });
      if (found == pulled_.end()) break;
      (*found)->finished = true;
      pulled_.erase(found);
      return;
    }
    case Command::kVerify:
    case Command::kSendInline:
    case Command::kSendPiece:
    case Command::kSendPull:
    case Command::kSendDirect:
    case Command::kTooLong:
    case Command::kOpen:
    case Command::kOffer:
    case Command::kTry:
    case Command::kTried: break;
  }
  mailbox_.fail(Errc::kPeerLost, "the receiver wrote an invalid mailbox entry");
}

void WindowSender::on_ready(const Entry& entry) {
  if (state_ != State::kAwaitingReady || entry.payload[3] != secret_) {
    mailbox_.fail(Errc::kPeerLost, "the mailbox is corrupted: a random word came back changed");
    return;
  }
  if (const auto theirs = static_cast<Verify>(entry.payload[2]); theirs != options_.level()) {
    mailbox_.fail(Errc::kInvalidUsage,
                  fmt::format("setting VERIFY differs: this end has {}, the receiving end {}",
                              name(options_.level()), name(theirs)));
    return;
  }
  may_pull_ = entry.payload[0] != 0;
  may_bounce_ = entry.payload[1] != 0;
  pattern_ = {};
  state_ = State::kOpen;
  Entry opened;
  opened.command = Command::kOpen;
  mailbox_.write(opened);
}

// Finds `bytes` contiguous bytes in the bounce ring.
// @return false when there is no room
bool WindowSender::take_bounce(std::size_t bytes, Piece& piece) {
  const std::size_t needed = whole_lines(bytes);
  std::uint64_t position = bounce_taken_;
  const std::uint64_t to_end = kBounceBytes - position % kBounceBytes;
  if (needed > to_end) position += to_end;
  if (position + needed - mailbox_.path().read_word(kFreedWord) > kBounceBytes) return false;
  piece.position = position;
  piece.skipped = static_cast<std::uint32_t>(position - bounce_taken_);
  bounce_taken_ = position + needed;
  return true;
}

void WindowSender::copy_pieces() {
  std::size_t copied = 0;
  for (bool moved = true; moved && copied < kSendLimitBytes;) {
    moved = false;
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      Piece& piece = queues_[q];
      if (piece.message != nullptr) {
        if (!queue_done(q)) continue;
        notify(piece);
        copied += piece.bytes;
        piece.message = nullptr;
        moved = true;
      }
      moved |= start_piece(q);
    }
  }
}

bool WindowSender::queue_done(std::size_t queue) {
  Path& path = mailbox_.path();
  return queue < path_queues_ ? path.copy_done(static_cast<int>(queue))
                              : path.device_copies()->done(static_cast<int>(queue - path_queues_));
}

bool WindowSender::start_piece(std::size_t queue) {
  if (bouncing_.empty()) return false;
  Message& message = *bouncing_.front();
  const bool device = message.device != nullptr && message.target.region == 0;
  if (device != (queue >= path_queues_)) return false;
  if (message.target.region != 0) {
    start_direct_piece(queue);
    return true;
  }
  Piece& piece = queues_[queue];
  const std::size_t limit = std::min(kBouncePieceBytes, mailbox_.path().capabilities().piece_bytes);
  piece.offset = message.next_offset;
  piece.bytes = std::min(limit, message.bytes - message.next_offset);
  if (!take_bounce(piece.bytes, piece)) return false;
  piece.message = &message;
  message.next_offset += piece.bytes;
  if (message.next_offset == message.bytes) bouncing_.pop_front();
  const std::size_t location =
      kBounceOffset + static_cast<std::size_t>(piece.position % kBounceBytes);
  const std::byte* source = message.data + piece.offset;
  Path& path = mailbox_.path();
  if (device) {
    path.device_copies()->start_write(static_cast<int>(queue - path_queues_), location, source,
                                      *message.device, piece.bytes);
  } else {
    path.start_write(static_cast<int>(queue), location, source, piece.bytes);
  }
  return true;
}

std::uint64_t WindowSender::sum_of(const Message& message, std::size_t offset,
                                   std::size_t bytes) const {
  const std::byte* data = message.data + offset;
  if (message.device == nullptr) return host_checksum(data, bytes);
  return device_checksum(*mailbox_.path().device_copies(), data, *message.device, bytes);
}

void WindowSender::notify(const Piece& piece) {
  Message& message = *piece.message;
  if (message.target.region != 0) return notify_direct(piece);
  Entry entry;
  entry.command = Command::kSendPiece;
  entry.id = message.id;
  entry.bytes = message.bytes;
  entry.tag = piece.skipped;
  entry.payload = {piece.offset, piece.bytes, piece.position,
                   options_.checksums ? sum_of(message, piece.offset, piece.bytes) : 0};
  mailbox_.write(entry);
  message.notified += piece.bytes;
  if (message.notified == message.bytes) finish(message);
}

// With checksums of every message, a message that is reported as sent has also left this end, since
// nobody may check again.
void WindowSender::finish(Message& message) {
  if (options_.checksums) {
    if (const std::optional<std::string> lost = mailbox_.path().stores_lost()) {
      mailbox_.fail(Errc::kPeerLost, *lost);
      return;
    }
  }
  message.finished = true;
}

void WindowSender::abandon(Message* message) {
  std::erase(pulled_, message);
  std::erase(bouncing_, message);
  Path& path = mailbox_.path();
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    if (queues_[q].message != message) continue;
    try {
      while (!queue_done(q)) std::this_thread::yield();
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
    queues_[q].message = nullptr;
  }
  if (message->target.region != 0 && --writing_ == 0) set_writing(false);
  // The receiver looks at the word after it copied, so it never takes for a message what was
  // written to this memory later.
  if (message->pulled) {
    path.put_word(kAbandonedWord, 1);
    // Device memory that another end opened lives until that closes it, so it need not be waited
    // for when that end stands still.
    if (message->device != nullptr) {
      wait_for_pull(kDevicePullTime);
    } else if (path.capabilities().pull_needs_owner) {
      wait_for_pull(std::nullopt);
    }
  }
  mailbox_.fail(Errc::kAborted, "a send was cancelled before it completed");
}

void WindowSender::wait_for_pull(std::optional<std::chrono::milliseconds> longest) const {
  // The receiver says that it begins before it looks at kAbandonedWord; this end set that word
  // before it looks here. So one of the two sees the other.
  mailbox_.path().order_puts_before_reads();
  const auto start = std::chrono::steady_clock::now();
  while (mailbox_.path().read_word(kPullingWord) != 0 && !mailbox_.path().peer_lost()) {
    if (longest && std::chrono::steady_clock::now() - start > *longest) return;
    std::this_thread::yield();
  }
}

}  // namespace ropewalk::transport::window
