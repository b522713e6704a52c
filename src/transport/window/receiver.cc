#include "transport/window/receiver.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/log.h"
#include "transport/receive_copy.h"
#include "transport/simple_requests.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {
namespace {

constexpr std::size_t kReceiveLimitBytes = std::size_t{1} << 20;

}  // namespace

WindowReceiver::WindowReceiver(std::unique_ptr<Path> path, Driver& driver, int device,
                               const Options& options)
    : mailbox_(std::move(path), driver.name() + " connection to a sender"),
      driver_(driver),
      device_(device),
      options_(options),
      queues_(static_cast<std::size_t>(mailbox_.path().capabilities().queues)) {
  const DeviceCopies* copies = mailbox_.path().device_copies();
  if (copies != nullptr) device_queues_.resize(static_cast<std::size_t>(copies->queues()));
}

WindowReceiver::~WindowReceiver() = default;

std::unique_ptr<Registration> WindowReceiver::register_memory(void* data, std::size_t bytes,
                                                              MemoryKind kind) {
  std::unique_ptr<Registration> made = driver_.register_memory(device_, data, bytes, kind);
  DeviceCopies* copies = mailbox_.path().device_copies();
  if (copies != nullptr && made->kind() != MemoryKind::kHost) copies->prepare(*made, true);
  return made;
}

std::string WindowReceiver::describe() const {
  if (!open_) return "it is being verified";
  const auto started = std::count_if(posted_.begin(), posted_.end(),
                                     [](const Posted* posted) { return posted->started; });
  const auto copying = std::count_if(device_queues_.begin(), device_queues_.end(),
                                     [](const DeviceCopy& copy) { return copy.posted != nullptr; });
  return fmt::format(
      "{} receives are posted, {} of them with a message that has begun; {} copies by GPUs under "
      "way{}, {} pieces and {} pulls waiting for one{}",
      posted_.size(), started, copying,
      copying > 0 ? " (the program may be loading a kernel, or freeing or registering memory)" : "",
      staged_.size(), device_pulls_.size(), offer_ ? "; the sender's memory is being opened" : "");
}

bool WindowReceiver::ready() {
  if (!open_) progress();
  mailbox_.throw_if_failed();
  return open_;
}

std::unique_ptr<Request> WindowReceiver::receive(std::span<const ReceiveBuffer> buffers) {
  check_buffers(buffers, kMaxGroup, kMaxMessageBytes);
  // A caller may post receives for long before it tests one: meanwhile the sender must get its
  // turn.
  if (!open_) progress();
  mailbox_.throw_if_failed();
  if (active_ >= kMaxRequests) {
    progress();
    return nullptr;
  }
  for (const ReceiveBuffer& buffer : buffers)
    (void)location_of(buffer);  // throws before any is posted
  return std::make_unique<ReceiveRequest<WindowReceiver>>(*this, buffers);
}

std::unique_ptr<Request> WindowReceiver::flush(std::span<const ReceiveBuffer> buffers) {
  return std::make_unique<FinishedRequest>(std::vector<std::size_t>(buffers.size(), 0));
}

void WindowReceiver::post(Posted& posted) {
  posted.id = next_id_++;
  posted.location = location_of(posted.buffer);
  posted_.push_back(&posted);
  Entry entry;
  entry.command = Command::kRecvRequested;
  entry.tag = posted.buffer.tag;
  entry.id = posted.id;
  entry.bytes = posted.buffer.bytes;
  entry.payload[0] = posted.location;
  state_target(posted, entry);
  mailbox_.write(entry);
}

void WindowReceiver::withdraw(Posted& posted) {
  std::erase(pulls_, &posted);
  for (std::size_t q = 0; q < queues_.size(); ++q) {
    if (queues_[q].posted != &posted) continue;
    try {
      while (!mailbox_.path().copy_done(static_cast<int>(q))) std::this_thread::yield();
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
    queues_[q].posted = nullptr;
  }
  withdraw_device(posted);
  std::erase(posted_, &posted);
  if (posted.target) end_direct_writes(posted);
  if (!reading()) set_pulling(false);
  mailbox_.fail(Errc::kAborted, "a receive was cancelled before it completed");
}

void WindowReceiver::progress() {
  if (mailbox_.failed()) return;
  try {
    copied_ = 0;
    read_mailbox(kReceiveLimitBytes);
    if (!mailbox_.failed()) pull_pieces();
    if (!mailbox_.failed()) copy_device_pieces();
    if (!mailbox_.failed() && copied_ == 0 && mailbox_.idle_and_lost()) {
      read_mailbox(~std::size_t{0});  // its last words were written before it went
      // So were the pieces that are still being copied to device memory.
      if (!staging()) mailbox_.fail(Errc::kPeerLost, mailbox_.lost());
    }
  } catch (const Error& error) {
    mailbox_.fail(error.code(), error.what());
  }
}

void WindowReceiver::read_mailbox(std::size_t limit_bytes) {
  if (verifying_) answer_verify();
  if (offer_) answer_pull();
  while (!mailbox_.failed() && copied_ < limit_bytes) {
    const std::optional<Entry> entry = mailbox_.read();
    if (!entry) return;
    on_entry(*entry);
  }
}

WindowReceiver::Posted* WindowReceiver::by_id(std::uint64_t id) {
  for (Posted* posted : posted_) {
    if (posted->id == id) return posted;
  }
  return nullptr;
}

void WindowReceiver::senseless() {
  mailbox_.fail(Errc::kPeerLost, "the sender wrote an invalid mailbox entry");
}

void WindowReceiver::finish(Posted& posted) {
  posted.finished = true;
  std::erase(posted_, &posted);
}

void WindowReceiver::on_entry(const Entry& entry) {
  if (entry.command == Command::kVerify) return on_verify(entry);
  if (entry.command == Command::kOpen) {
    open_ = true;
    return;
  }
  if (entry.command == Command::kOffer) return on_offer(entry);
  if (entry.command == Command::kTry) return on_try(entry);
  if (entry.command == Command::kTried) return on_tried(entry);
  Posted* posted = by_id(entry.id);
  if (posted == nullptr) return senseless();
  if (entry.command == Command::kTooLong) {
    return mailbox_.fail(Errc::kInvalidUsage,
                         fmt::format("a message of {} bytes (tag {}) was sent for a receive of {} "
                                     "bytes",
                                     entry.bytes, posted->buffer.tag, posted->buffer.bytes));
  }
  if (entry.bytes > posted->buffer.bytes || (posted->started && entry.bytes != posted->bytes)) {
    return senseless();
  }
  posted->bytes = entry.bytes;
  switch (entry.command) {
    case Command::kSendInline: return on_inline(entry, *posted);
    case Command::kSendPiece: return on_piece(entry, *posted);
    case Command::kSendDirect: return on_direct(entry, *posted);
    case Command::kSendPull:
      if (posted->started || entry.bytes == 0) break;
      if (posted->location == 0 && !mailbox_.path().capabilities().pull) break;
      if ((entry.payload[1] != 0) != (posted->location != 0)) break;
      if (posted->location != 0) {
        if (device_pulling() == nullptr) break;
        const std::optional<std::uint64_t> room =
            device_pulling()->opened(entry.payload[1], posted->location);
        if (!room || entry.payload[0] > *room || entry.bytes > *room - entry.payload[0]) break;
      }
      posted->started = true;
      posted->source = entry.payload[0];
      posted->key = entry.payload[1];
      posted->checksum = entry.payload[3];
      (posted->location != 0 ? device_pulls_ : pulls_).push_back(posted);
      return;
    case Command::kVerify:
    case Command::kReady:
    case Command::kRecvRequested:
    case Command::kCompleted:
    case Command::kTooLong:
    case Command::kOpen:
    case Command::kOffer:
    case Command::kAnswer:
    case Command::kTry:
    case Command::kTarget:
    case Command::kTried: break;
  }
  senseless();
}

void WindowReceiver::on_inline(const Entry& entry, Posted& posted) {
  const bool checked = entry.tag != 0;
  if (posted.started || (posted.location != 0 && entry.bytes > 0) ||
      entry.bytes > kInlineBytes - (checked ? sizeof(std::uint64_t) : 0)) {
    return senseless();
  }
  if (entry.bytes > 0) std::memcpy(posted.buffer.data, entry.payload.data(), entry.bytes);
  if (checked && wire_checksum(entry.payload.data(), entry.bytes) != entry.payload[3]) {
    return mailbox_.fail(Errc::kPeerLost, "a message in the mailbox has a wrong checksum");
  }
  finish(posted);
}

void WindowReceiver::on_piece(const Entry& entry, Posted& posted) {
  const auto [offset, bytes, position, sum] = entry.payload;
  const auto location = static_cast<std::size_t>(position % kBounceBytes);
  if (bytes == 0 || bytes > kBouncePieceBytes || location + bytes > kBounceBytes ||
      offset > entry.bytes || bytes > entry.bytes - offset ||
      bytes > entry.bytes - posted.arrived) {
    return senseless();
  }
  posted.started = true;
  const RingRange range{position - entry.tag, position + (bytes + 63) / 64 * 64};
  if (posted.location != 0) {
    staged_.push_back({&posted, offset, bytes, location, range, sum});
    return;
  }
  auto* destination = static_cast<std::byte*>(posted.buffer.data) + offset;
  const std::byte* const staged = mailbox_.path().window() + kBounceOffset + location;
  copy_to_receive(destination, staged, bytes, posted.buffer.bytes);
  free_ring(range);
  copied_ += bytes;
  if (sum != 0 && wire_checksum(destination, bytes) != sum) {
    return mailbox_.fail(
        Errc::kPeerLost,
        fmt::format("a piece of {} bytes came through the bounce ring with a wrong checksum",
                    bytes));
  }
  posted.arrived += bytes;
  if (posted.arrived == posted.bytes) finish(posted);
}

// Pieces are copied out in any order; their room is given back in the ring's.
void WindowReceiver::free_ring(const RingRange& range) {
  if (range.begin != freed_) {
    freed_early_.emplace(range.begin, range.end);
    return;
  }
  freed_ = range.end;
  while (!freed_early_.empty() && freed_early_.begin()->first == freed_) {
    freed_ = freed_early_.begin()->second;
    freed_early_.erase(freed_early_.begin());
  }
  mailbox_.path().put_word(kFreedWord, freed_);
}

bool WindowReceiver::reading() const {
  return std::any_of(queues_.begin(), queues_.end(),
                     [](const Pull& pull) { return pull.posted != nullptr; }) ||
         std::any_of(device_queues_.begin(), device_queues_.end(),
                     [](const DeviceCopy& copy) { return copy.posted != nullptr && !copy.staged; });
}

void WindowReceiver::set_pulling(bool pulling) {
  if (!mailbox_.path().capabilities().pull_needs_owner && device_pulling() == nullptr) return;
  mailbox_.path().put_word(kPullingWord, pulling ? 1 : 0);
  mailbox_.path().order_puts_before_reads();  // see WindowSender::wait_for_pull
}

bool WindowReceiver::abandoned() {
  if (mailbox_.path().read_word(kAbandonedWord) == 0) return false;
  mailbox_.fail(Errc::kPeerLost, "the sender cancelled a message before it was copied");
  return true;
}

// A message is complete: checks it, and notifies the sender.
void WindowReceiver::finish_pull(Posted& posted) {
  // Memory that the sender gave up may have been anything by the time it was read.
  if (abandoned()) return;
  if (posted.checksum != 0 && sum_of(posted, 0, posted.bytes) != posted.checksum) {
    mailbox_.fail(
        Errc::kPeerLost,
        fmt::format("a message of {} bytes was pulled with a wrong checksum", posted.bytes));
    return;
  }
  Entry entry;
  entry.command = Command::kCompleted;
  entry.id = posted.id;
  mailbox_.write(entry);
  finish(posted);
}

std::uint64_t WindowReceiver::sum_of(const Posted& posted, std::size_t offset,
                                     std::size_t bytes) const {
  const std::byte* data = static_cast<const std::byte*>(posted.buffer.data) + offset;
  if (posted.location == 0) return host_checksum(data, bytes);
  return device_checksum(*mailbox_.path().device_copies(), data, *posted.buffer.registration,
                         bytes);
}

void WindowReceiver::pull_pieces() {
  if (verifying_ || (pulls_.empty() && !reading())) return;
  Path& path = mailbox_.path();
  set_pulling(true);
  // On return, also by an error, the word is cleared unless a queue is still reading.
  struct Clear {
    explicit Clear(WindowReceiver& from) : receiver(from) {}
    Clear(const Clear&) = delete;
    Clear& operator=(const Clear&) = delete;
    ~Clear() {
      if (!receiver.reading()) receiver.set_pulling(false);
    }
    WindowReceiver& receiver;
  };
  const Clear clear(*this);
  if (abandoned()) return;
  for (bool moved = true; moved && copied_ < kReceiveLimitBytes;) {
    moved = false;
    for (std::size_t q = 0; q < queues_.size(); ++q) {
      const int queue = static_cast<int>(q);
      Pull& pull = queues_[q];
      if (pull.posted != nullptr) {
        if (!path.copy_done(queue)) continue;
        Posted& posted = *std::exchange(pull.posted, nullptr);
        moved = true;
        copied_ += pull.bytes;
        posted.arrived += pull.bytes;
        if (posted.arrived == posted.bytes) finish_pull(posted);
        if (mailbox_.failed()) return;
      }
      if (pulls_.empty()) continue;
      Posted& posted = *pulls_.front();
      pull.bytes = std::min(path.capabilities().piece_bytes, posted.bytes - posted.next_offset);
      path.start_pull(queue, static_cast<std::byte*>(posted.buffer.data) + posted.next_offset,
                      posted.source + posted.next_offset, pull.bytes);
      pull.posted = &posted;
      posted.next_offset += pull.bytes;
      if (posted.next_offset == posted.bytes) pulls_.pop_front();
      moved = true;
    }
  }
}

// ---- verification --------------------------------------------------------------------------

void WindowReceiver::on_verify(const Entry& entry) {
  if (verify_.command == Command::kVerify) return senseless();
  verify_ = entry;
  if (const auto theirs = static_cast<Verify>(entry.payload[0]); theirs != options_.level()) {
    tell_ready(false, false);  // it names the setting, too
    mailbox_.fail(Errc::kInvalidUsage,
                  fmt::format("setting VERIFY differs: this end has {}, the sending end {}",
                              name(options_.level()), name(theirs)));
    return;
  }
  verifying_ = true;
  Path& path = mailbox_.path();
  if (entry.payload[0] != 0) {
    for (std::size_t copy = 0; copy < kPatternCopies; ++copy) {
      if (checksum(path.window() + pattern_offset(copy), kPatternBytes) != entry.payload[2]) {
        bounce_failure_ = "a pattern arrived changed";
      }
    }
    if (path.capabilities().pull) {
      pulled_pattern_.resize(kPatternBytes);
      try {
        path.start_pull(0, pulled_pattern_.data(), entry.payload[1], kPatternBytes);
      } catch (const Error& error) {
        log::info(log::kNet, "{}", error.what());
        pulled_pattern_.clear();
      }
    }
  }
  answer_verify();
}

void WindowReceiver::answer_verify() {
  Path& path = mailbox_.path();
  const bool checked = verify_.payload[0] != 0;
  bool may_pull = path.capabilities().pull;
  std::string why = path.capabilities().why_no_pull;
  if (checked && may_pull) {
    if (pulled_pattern_.empty()) {
      may_pull = false;
      why = "a pattern could not be copied";
    } else {
      try {
        if (!path.copy_done(0)) return;
        if (checksum(pulled_pattern_.data(), kPatternBytes) != verify_.payload[2]) {
          may_pull = false;
          why = "a pattern arrived changed";
        }
      } catch (const Error& error) {
        may_pull = false;
        why = error.what();
      }
    }
  }
  pulled_pattern_ = {};
  verifying_ = false;
  const bool may_bounce = bounce_failure_.empty();
  if (!may_pull && options_.require_pull) {
    mailbox_.fail(Errc::kSystem, "SINGLE_COPY is on, but single copy is not possible: " + why);
    return;
  }
  if (!may_pull && !may_bounce) {
    mailbox_.fail(Errc::kSystem,
                  "verification failed: bounce ring: " + bounce_failure_ + "; single copy: " + why);
    return;
  }
  if (!may_bounce) {
    log::warn("{}: bounce ring not used: {}", driver_.name(), bounce_failure_);
  }
  if (!may_pull && path.capabilities().pull) {
    log::warn("{}: single copy not used, messages are copied twice: {}", driver_.name(), why);
  } else if (!may_pull) {
    log::info(log::kNet, "{}: single copy not used: {}", driver_.name(), why);
  }
  tell_ready(may_pull, may_bounce);
}

void WindowReceiver::tell_ready(bool may_pull, bool may_bounce) {
  Entry entry;
  entry.command = Command::kReady;
  entry.payload = {may_pull ? 1U : 0U, may_bounce ? 1U : 0U,
                   static_cast<std::uint64_t>(options_.level()), verify_.payload[3]};
  mailbox_.write(entry);
}

}  // namespace ropewalk::transport::window
