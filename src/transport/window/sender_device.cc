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

// @return null when it is not known yet: to be asked again
const WindowSender::Way* WindowSender::way(const Registration* source, std::uint32_t source_place,
                                           std::uint32_t place) {
  DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    mailbox_.fail(Errc::kPeerLost, "the receiver asks for device memory, which this end has not");
    return nullptr;
  }
  const std::uint64_t key = source_place != 0 ? device->key(*source) : 0;
  const auto known = std::find_if(ways_.begin(), ways_.end(), [&](const Way& entry) {
    return entry.key == key && entry.place == place;
  });
  if (known != ways_.end() && known->answered) return &*known;
  progress();
  if (mailbox_.failed() || offering_) return nullptr;
  Way made;
  made.key = key;
  made.place = place;
  try {
    if (start_offer(made, source, source_place)) {
      std::erase_if(ways_,
                    [&](const Way& entry) { return entry.key != 0 && device->ended(entry.key); });
      ways_.push_back(made);
      offering_ = true;
    }
  } catch (const Error& error) {
    mailbox_.fail(error.code(), error.what());
  }
  return nullptr;
}

// @return whether it went; otherwise there is no room for it now
bool WindowSender::start_offer(Way& way, const Registration* source, std::uint32_t source_place) {
  Path& path = mailbox_.path();
  DeviceCopies& device = *path.device_copies();
  Entry entry;
  entry.command = Command::kOffer;
  entry.id = (std::uint64_t{source_place} << 32) | way.place;
  // A pull is from device memory into device memory.
  if (source_place != 0 && way.place != 0) {
    const std::optional<std::string> refused = device.offer(*source);
    if (!refused) return false;
    if (refused->empty()) {
      entry.payload[0] = way.key;
    } else {
      log::info(log::kNet, "{}: GPU memory is staged: {}", driver_.name(), *refused);
    }
  }
  const std::pair places{source_place, way.place};
  const bool check =
      options_.verify && std::find(checked_.begin(), checked_.end(), places) == checked_.end();
  if (check) {
    const Registration* pattern = nullptr;
    try {
      if (source_place != 0) pattern = &device.pattern_memory(*source);
    } catch (const Error& error) {
      // Out of device memory, say. No pull is tried then, and the receiver's half of staging is.
      log::info(log::kNet, "{}: no memory for a pattern: {}", driver_.name(), error.what());
    }
    if (entry.payload[0] != 0 && pattern != nullptr) {
      const std::optional<std::string> refused = device.offer(*pattern);
      if (!refused) return false;
      if (refused->empty()) entry.payload[1] = device.key(*pattern);
    }
    const std::span<const std::byte> bytes = device.pattern();
    Piece piece;
    if (!take_bounce(bytes.size(), piece)) return false;
    const std::size_t offset =
        kBounceOffset + static_cast<std::size_t>(piece.position % kBounceBytes);
    entry.bytes = bytes.size();
    entry.tag = piece.skipped;
    entry.payload[2] = piece.position;
    entry.payload[3] = checksum(bytes.data(), bytes.size());
    if (pattern == nullptr) {
      path.put(offset, bytes.data(), bytes.size());
    } else {
      try {
        device.write_pattern(*pattern, offset);
      } catch (const Error& error) {
        // The receiver will not find the pattern there, and say what that means.
        log::info(log::kNet, "{}: a pattern could not be staged: {}", driver_.name(), error.what());
      }
    }
    checked_.push_back(places);
  }
  mailbox_.write(entry);
  return true;
}

bool WindowSender::on_answer(const Entry& entry) {
  const auto asked = std::find_if(ways_.begin(), ways_.end(), [&](const Way& way) {
    return !way.answered && way.place == static_cast<std::uint32_t>(entry.id);
  });
  if (!offering_ || asked == ways_.end() || (entry.payload[1] == 0 && entry.payload[2] == 0)) {
    return false;
  }
  asked->answered = true;
  asked->may_pull = entry.payload[1] != 0;
  asked->may_stage = entry.payload[2] != 0;
  offering_ = false;
  return true;
}

}  // namespace ropewalk::transport::window
