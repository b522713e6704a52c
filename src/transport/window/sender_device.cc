// The sending end's part for device memory: how messages go, asked of the receiver once for every
// registration. See engine.h.
#include <algorithm>
#include <span>

#include "core/log.h"
#include "transport/window/sender.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {

std::uint64_t device_checksum(DeviceCopies& device, const void* data,
                              const Registration& registration, std::size_t bytes) {
  std::vector<std::byte> piece(std::min(bytes, kChecksumPieceBytes));
  std::vector<std::uint64_t> sums;
  for (std::size_t offset = 0; offset < bytes; offset += piece.size()) {
    const std::size_t now = std::min(piece.size(), bytes - offset);
    device.fetch(piece.data(), static_cast<const std::byte*>(data) + offset, registration, now);
    sums.push_back(wire_checksum(piece.data(), now));
  }
  if (sums.size() == 1) return sums[0];
  return wire_checksum(sums.data(), sums.size() * sizeof(sums[0]));
}

std::uint32_t WindowSender::place_of(const Registration* registration, const void* data,
                                     std::size_t bytes) const {
  if (registration == nullptr || registration->kind() == MemoryKind::kHost) return 0;
  const DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}", "this connection moves no device memory");
  }
  return device->place(*registration, data, bytes);
}

// Pulled where that may be, else staged. Each is asked about when it is needed: so most connections
// never try the other.
WindowSender::Way WindowSender::way(const Registration* source, std::uint32_t source_place,
                                    std::uint32_t place) {
  DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    mailbox_.fail(Errc::kPeerLost, "the receiver asks for device memory, which this end has not");
    return Way::kUnknown;
  }
  const std::uint64_t places = (std::uint64_t{source_place} << 32) | place;
  if (source_place != 0 && place != 0) {
    const std::optional<bool> pulls = ask(device->key(*source), source, places);
    if (!pulls) return Way::kUnknown;
    if (*pulls) return Way::kPulled;
  }
  return ask(0, source, places).value_or(false) ? Way::kStaged : Way::kUnknown;
}

// @return nothing when it is not known yet: to be asked again
std::optional<bool> WindowSender::ask(std::uint64_t key, const Registration* source,
                                      std::uint64_t places) {
  const auto known = std::find_if(questions_.begin(), questions_.end(), [&](const Question& entry) {
    return entry.key == key && entry.places == places;
  });
  if (known != questions_.end() && known->answer) return known->answer;
  progress();
  if (mailbox_.failed() || offering_) return std::nullopt;
  try {
    Question made{key, places, std::nullopt};
    if (!(key != 0 ? offer_pull(made, *source) : offer_stage(made, source))) return std::nullopt;
    const DeviceCopies& device = *mailbox_.path().device_copies();
    std::erase_if(questions_,
                  [&](const Question& entry) { return entry.key != 0 && device.ended(entry.key); });
    questions_.push_back(made);
    offering_ = !made.answer;
    return made.answer;
  } catch (const Error& error) {
    mailbox_.fail(error.code(), error.what());
    return std::nullopt;
  }
}

// @return whether it went, or is known by now; otherwise there is no room for it
bool WindowSender::offer_pull(Question& question, const Registration& source) {
  DeviceCopies& device = *mailbox_.path().device_copies();
  const auto refuse = [&](const std::string& why) {
    log::info(log::kNet, "{}: GPU memory is staged: {}", driver_.name(), why);
    question.answer = false;
    return true;
  };
  const std::optional<std::string> refused = device.offer(source);
  if (!refused) return false;
  if (!refused->empty()) return refuse(*refused);
  Entry entry;
  entry.command = Command::kOffer;
  entry.id = question.places;
  entry.payload[0] = question.key;
  if (options_.verify &&
      std::find(checked_.begin(), checked_.end(), question.places) == checked_.end()) {
    try {
      const Registration& pattern = device.pattern_memory(source);
      const std::optional<std::string> no_pattern = device.offer(pattern);
      if (!no_pattern) return false;
      if (!no_pattern->empty()) return refuse(*no_pattern);
      entry.payload[1] = device.key(pattern);
    } catch (const Error& error) {  // out of device memory, say
      return refuse(error.what());
    }
    const std::span<const std::byte> bytes = device.pattern();
    entry.bytes = bytes.size();
    entry.payload[3] = checksum(bytes.data(), bytes.size());
    checked_.push_back(question.places);
  }
  mailbox_.write(entry);
  return true;
}

bool WindowSender::offer_stage(Question& question, const Registration* source) {
  if (!options_.verify) {
    question.answer = true;
    return true;
  }
  Path& path = mailbox_.path();
  DeviceCopies& device = *path.device_copies();
  const std::span<const std::byte> bytes = device.pattern();
  Piece piece;
  if (!take_bounce(bytes.size(), piece)) return false;
  const std::size_t offset =
      kBounceOffset + static_cast<std::size_t>(piece.position % kBounceBytes);
  if (question.places >> 32 == 0) {
    path.put(offset, bytes.data(), bytes.size());
  } else {
    try {
      device.write_pattern(device.pattern_memory(*source), offset);
    } catch (const Error& error) {
      // The receiver will not find the pattern there, and says what that means.
      log::warn("{}: a pattern could not be staged: {}", driver_.name(), error.what());
    }
  }
  Entry entry;
  entry.command = Command::kOffer;
  entry.id = question.places;
  entry.bytes = bytes.size();
  entry.tag = piece.skipped;
  entry.payload[2] = piece.position;
  entry.payload[3] = checksum(bytes.data(), bytes.size());
  mailbox_.write(entry);
  return true;
}

bool WindowSender::on_answer(const Entry& entry) {
  const auto asked =
      std::find_if(questions_.begin(), questions_.end(), [&](const Question& question) {
        return !question.answer && question.key == entry.payload[0] && question.places == entry.id;
      });
  if (!offering_ || asked == questions_.end()) return false;
  asked->answer = entry.payload[1] != 0;
  offering_ = false;
  return true;
}

}  // namespace ropewalk::transport::window
