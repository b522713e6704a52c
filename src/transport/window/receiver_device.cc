// The receiving end's part for device memory: copies out of the bounce ring and out of memory that
// the sender offered, and the answers to its offers. See engine.h.
#include <algorithm>
#include <cstring>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "core/log.h"
#include "transport/window/receiver.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {

std::uint32_t WindowReceiver::location_of(const ReceiveBuffer& buffer) const {
  if (buffer.registration == nullptr || buffer.registration->kind() == MemoryKind::kHost) return 0;
  const DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}", "this connection moves no device memory");
  }
  return device->location(*buffer.registration, buffer.data, buffer.bytes);
}

DevicePulls* WindowReceiver::device_pulling() const {
  DeviceCopies* device = mailbox_.path().device_copies();
  return device == nullptr ? nullptr : device->pulls();
}

void WindowReceiver::copy_device_pieces() {
  const bool pulls = !device_pulls_.empty() || reading();
  if (pulls) set_pulling(true);
  if (device_pulls_.empty() || !abandoned()) advance_device_queues();
  if (pulls && !reading()) set_pulling(false);
}

void WindowReceiver::advance_device_queues() {
  for (std::size_t q = 0; q < device_queues_.size(); ++q) {
    if (device_queues_[q].posted != nullptr && !finish_device_copy(q)) continue;
    if (mailbox_.failed() || !start_device_copy(q)) continue;
  }
}

// Whether pieces in this end's window are being copied to device memory.
bool WindowReceiver::staging() const {
  return !staged_.empty() ||
         std::any_of(device_queues_.begin(), device_queues_.end(),
                     [](const DeviceCopy& copy) { return copy.staged.has_value(); });
}

// @return whether the queue is idle now
bool WindowReceiver::finish_device_copy(std::size_t queue) {
  DeviceCopy& copy = device_queues_[queue];
  if (!mailbox_.path().device_copies()->done(static_cast<int>(queue))) return false;
  Posted& posted = *std::exchange(copy.posted, nullptr);
  posted.arrived += copy.bytes;
  copied_ += copy.bytes;
  if (!copy.staged) {
    if (posted.arrived == posted.bytes) finish_pull(posted);
    return true;
  }
  const StagedPiece piece = *std::exchange(copy.staged, std::nullopt);
  free_ring(piece.range);
  if (piece.checksum != 0 && sum_of(posted, piece.offset, piece.bytes) != piece.checksum) {
    mailbox_.fail(Errc::kPeerLost,
                  fmt::format("a piece of {} bytes was staged to device memory with a wrong "
                              "checksum",
                              piece.bytes));
  } else if (posted.arrived == posted.bytes) {
    finish(posted);
  }
  return true;
}

bool WindowReceiver::start_device_copy(std::size_t queue) {
  DeviceCopies& device = *mailbox_.path().device_copies();
  DeviceCopy& copy = device_queues_[queue];
  if (!staged_.empty()) {
    const StagedPiece piece = staged_.front();
    staged_.pop_front();
    Posted& posted = *piece.posted;
    device.start_read(static_cast<int>(queue),
                      static_cast<std::byte*>(posted.buffer.data) + piece.offset,
                      *posted.buffer.registration, kBounceOffset + piece.location, piece.bytes);
    copy.posted = &posted;
    copy.bytes = piece.bytes;
    copy.staged = piece;
    return true;
  }
  if (device_pulls_.empty()) return false;
  Posted& posted = *device_pulls_.front();
  DevicePulls& pulls = *device.pulls();
  const std::size_t bytes = std::min(pulls.piece_bytes(), posted.bytes - posted.next_offset);
  pulls.start_pull(
      static_cast<int>(queue), static_cast<std::byte*>(posted.buffer.data) + posted.next_offset,
      *posted.buffer.registration, posted.key, posted.source + posted.next_offset, bytes);
  copy.posted = &posted;
  copy.bytes = bytes;
  posted.next_offset += bytes;
  if (posted.next_offset == posted.bytes) device_pulls_.pop_front();
  return true;
}

void WindowReceiver::withdraw_device(const Posted& posted) {
  std::erase(device_pulls_, &posted);
  std::erase_if(staged_, [&](const StagedPiece& piece) { return piece.posted == &posted; });
  for (std::size_t q = 0; q < device_queues_.size(); ++q) {
    DeviceCopy& copy = device_queues_[q];
    if (copy.posted != &posted) continue;
    try {
      while (!mailbox_.path().device_copies()->done(static_cast<int>(q))) {
        std::this_thread::yield();
      }
    } catch (const Error& error) {
      log::warn("{}", error.what());
    }
    copy = {};
  }
}

// ---- offers --------------------------------------------------------------------------------

void WindowReceiver::on_offer(const Entry& entry) {
  if (offer_ || mailbox_.path().device_copies() == nullptr || entry.bytes > kPatternBytes) {
    return senseless();
  }
  if (entry.payload[0] == kStaging) return answer_stage(entry);
  if (static_cast<std::uint32_t>(entry.id) == 0 || device_pulling() == nullptr) return senseless();
  offer_ = entry;
  answer_pull();
}

void WindowReceiver::answer(const Entry& offer, bool yes) {
  Entry entry;
  entry.command = Command::kAnswer;
  entry.id = offer.id;
  entry.payload = {offer.payload[0], yes ? 1U : 0U, 0, 0};
  mailbox_.write(entry);
}

// Opening takes a while: called until it is over.
void WindowReceiver::answer_pull() {
  const Entry offer = *offer_;
  DevicePulls& device = *device_pulling();
  const auto location = static_cast<std::uint32_t>(offer.id);
  const std::optional<std::string> opened = device.open(offer.payload[0], location);
  if (!opened) return;
  if (offer.bytes > 0) {
    const std::optional<std::string> pattern = device.open(offer.payload[1], location);
    if (!pattern) return;
    pull_verdicts_[offer.id] =
        !pattern->empty() ? *pattern : try_pattern(offer, [&](std::span<std::byte> seen) {
          device.pull_pattern(offer.payload[1], location, seen);
        });
  }
  offer_.reset();
  std::string failure = *opened;
  // The result of a pattern is valid for all memory of these locations.
  const auto verdict = pull_verdicts_.find(offer.id);
  if (failure.empty() && verdict != pull_verdicts_.end()) failure = verdict->second;
  if (!failure.empty()) {
    log::warn("{}: GPU memory is staged through host memory: {}", driver_.name(), failure);
    pull_failure_ = failure;
  }
  answer(offer, failure.empty());
}

void WindowReceiver::answer_stage(const Entry& offer) {
  const std::uint64_t position = offer.payload[2];
  const auto in_ring = static_cast<std::size_t>(position % kBounceBytes);
  if (offer.bytes == 0 || in_ring + offer.bytes > kBounceBytes) return senseless();
  const std::size_t offset = kBounceOffset + in_ring;
  const auto location = static_cast<std::uint32_t>(offer.id);
  const std::string failure = try_pattern(offer, [&](std::span<std::byte> seen) {
    if (location != 0) {
      mailbox_.path().device_copies()->read_pattern(offset, location, seen);
    } else {
      std::memcpy(seen.data(), mailbox_.path().window() + offset, seen.size());
    }
  });
  free_ring({position - offer.tag, position + (offer.bytes + 63) / 64 * 64});
  if (failure.empty()) return answer(offer, true);
  mailbox_.fail(Errc::kSystem, "verification of device memory failed: staged: " + failure +
                                   (pull_failure_.empty() ? "" : "; pulled: " + pull_failure_));
}

// Compares what `copy` brings with the pattern.
// @return why it failed, empty for success
std::string WindowReceiver::try_pattern(const Entry& offer,
                                        const std::function<void(std::span<std::byte>)>& copy) {
  std::vector<std::byte> seen(offer.bytes);
  try {
    copy(seen);
  } catch (const Error& error) {
    return error.what();
  }
  return checksum(seen.data(), seen.size()) == offer.payload[3]
             ? ""
             : "a copy reported success, but the pattern did not arrive";
}

}  // namespace ropewalk::transport::window
