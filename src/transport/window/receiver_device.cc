// The receiving end's part for device memory: copies out of the bounce ring and out of memory that
// the sender offered, and the answers to its offers. See engine.h.
#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "core/log.h"
#include "transport/window/receiver.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {

std::uint32_t WindowReceiver::place_of(const ReceiveBuffer& buffer) const {
  if (buffer.registration == nullptr || buffer.registration->kind() == MemoryKind::kHost) return 0;
  const DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}", "this connection moves no device memory");
  }
  return device->place(*buffer.registration, buffer.data, buffer.bytes);
}

void WindowReceiver::copy_device_pieces() {
  for (std::size_t q = 0; q < device_queues_.size(); ++q) {
    if (device_queues_[q].posted != nullptr && !finish_device_copy(q)) continue;
    if (mailbox_.failed() || !start_device_copy(q)) continue;
  }
}

// Whether pieces in this end's window are on their way to device memory.
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
                      *posted.buffer.registration, kBounceOffset + piece.place, piece.bytes);
    copy.posted = &posted;
    copy.bytes = piece.bytes;
    copy.staged = piece;
    return true;
  }
  if (device_pulls_.empty()) return false;
  Posted& posted = *device_pulls_.front();
  if (posted.next_offset == 0 && abandoned()) return false;
  const std::size_t bytes = std::min(device.piece_bytes(), posted.bytes - posted.next_offset);
  device.start_pull(
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
  const auto position = static_cast<std::size_t>(entry.payload[2] % kBounceBytes);
  if (position + entry.bytes > kBounceBytes) return senseless();
  offer_ = entry;
  answer_offer();
}

// @return nothing when it takes longer; else why not, empty for success
std::optional<std::string> WindowReceiver::open_offered(std::uint64_t key, std::uint32_t place) {
  if (key == 0) return "it was not offered";
  return mailbox_.path().device_copies()->open(key, place);
}

void WindowReceiver::answer_offer() {
  const Entry offer = *offer_;
  const std::uint64_t key = offer.payload[0];
  const auto place = static_cast<std::uint32_t>(offer.id);
  const std::optional<std::string> why_not = open_offered(key, place);
  if (!why_not) return;
  std::string no_pattern = "its memory was not offered";
  if (offer.bytes > 0 && key != 0 && offer.payload[1] != 0) {
    const std::optional<std::string> pattern = open_offered(offer.payload[1], place);
    if (!pattern) return;
    no_pattern = *pattern;
  }
  offer_.reset();
  auto known = std::find_if(verdicts_.begin(), verdicts_.end(),
                            [&](const Verdict& verdict) { return verdict.places == offer.id; });
  if (offer.bytes > 0) {
    if (known != verdicts_.end()) verdicts_.erase(known);
    verdicts_.push_back(judge(offer, place, no_pattern));
    known = std::prev(verdicts_.end());
    const std::uint64_t position = offer.payload[2];
    free_ring({position - offer.tag, position + (offer.bytes + 63) / 64 * 64});
  }
  const Verdict verdict = known != verdicts_.end() ? *known : Verdict{};
  const bool may_pull = key != 0 && why_not->empty() && verdict.pull_failure.empty();
  const bool may_stage = verdict.stage_failure.empty();
  const std::string& pull_failure = !why_not->empty() ? *why_not : verdict.pull_failure;
  if (!may_pull && !may_stage) {
    mailbox_.fail(Errc::kSystem, "verification of device memory failed: staged: " +
                                     verdict.stage_failure + "; pulled: " + pull_failure);
    return;
  }
  if (!may_stage)
    log::warn("{}: GPU memory is not staged: {}", driver_.name(), verdict.stage_failure);
  if (!may_pull && key != 0) {
    log::warn("{}: GPU memory is staged through host memory: {}", driver_.name(), pull_failure);
  }
  Entry entry;
  entry.command = Command::kAnswer;
  entry.id = offer.id;
  entry.payload = {key, may_pull ? 1U : 0U, may_stage ? 1U : 0U, 0};
  mailbox_.write(entry);
}

// Compares what comes to this end's memory, by each way, with the pattern.
WindowReceiver::Verdict WindowReceiver::judge(const Entry& offer, std::uint32_t place,
                                              const std::string& unopened) {
  DeviceCopies& device = *mailbox_.path().device_copies();
  const std::size_t offset =
      kBounceOffset + static_cast<std::size_t>(offer.payload[2] % kBounceBytes);
  std::vector<std::byte> seen(offer.bytes);
  const auto failure = [&](const auto& copy) -> std::string {
    try {
      std::fill(seen.begin(), seen.end(), std::byte{});
      copy();
    } catch (const Error& error) {
      return error.what();
    }
    return checksum(seen.data(), seen.size()) == offer.payload[3]
               ? ""
               : "a copy reported success, but the pattern did not come";
  };
  Verdict verdict;
  verdict.places = offer.id;
  verdict.stage_failure = failure([&] {
    if (place != 0) {
      device.read_pattern(offset, place, seen);
    } else {
      std::memcpy(seen.data(), mailbox_.path().window() + offset, seen.size());
    }
  });
  if (offer.payload[0] == 0) return verdict;
  verdict.pull_failure = unopened;
  if (unopened.empty()) {
    verdict.pull_failure = failure([&] { device.pull_pattern(offer.payload[1], place, seen); });
  }
  return verdict;
}

}  // namespace ropewalk::transport::window
