// The sending end's part for device memory: how messages go, asked of the receiver once for every
// registration. See engine.h.
#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/sender.h"
#include "transport/window/verify.h"

namespace ropewalk::transport::window {

namespace {

// `piece_at(offset, bytes)` says where the CPU finds that piece.
template <typename PieceAt>
std::uint64_t checksum_of_pieces(std::size_t bytes, PieceAt piece_at) {
  std::vector<std::uint64_t> sums;
  for (std::size_t offset = 0; offset < bytes; offset += kChecksumPieceBytes) {
    const std::size_t now = std::min(kChecksumPieceBytes, bytes - offset);
    sums.push_back(wire_checksum(piece_at(offset, now), now));
  }
  if (sums.size() == 1) return sums[0];
  return wire_checksum(sums.data(), sums.size() * sizeof(sums[0]));
}

}  // namespace

std::uint64_t host_checksum(const void* data, std::size_t bytes) {
  return checksum_of_pieces(bytes, [&](std::size_t offset, std::size_t /*bytes*/) {
    return static_cast<const std::byte*>(data) + offset;
  });
}

std::uint64_t device_checksum(DeviceCopies& device, const void* data,
                              const Registration& registration, std::size_t bytes) {
  std::vector<std::byte> piece(std::min(bytes, kChecksumPieceBytes));
  return checksum_of_pieces(bytes, [&](std::size_t offset, std::size_t now) {
    device.fetch(piece.data(), static_cast<const std::byte*>(data) + offset, registration, now);
    return piece.data();
  });
}

std::uint32_t WindowSender::location_of(const Registration* registration, const void* data,
                                        std::size_t bytes) const {
  if (registration == nullptr || registration->kind() == MemoryKind::kHost) return 0;
  const DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}", "this connection moves no device memory");
  }
  return device->location(*registration, data, bytes);
}

// Written directly or pulled where that may be, else staged. Each is asked about when it is needed:
// so most connections never try the others.
WindowSender::Method WindowSender::method(const Requested& request, const void* data,
                                          std::size_t bytes, std::uint32_t location,
                                          const Registration* registration) {
  DeviceCopies* device = mailbox_.path().device_copies();
  if (device == nullptr) {
    mailbox_.fail(Errc::kPeerLost,
                  "the receiver asks for device memory, which this end does not have");
    return Method::kUnknown;
  }
  const std::uint64_t locations = (std::uint64_t{location} << 32) | request.location;
  const Registration* const source = location != 0 ? registration : nullptr;
  const Target target = request.target;  // asking may bring more requests
  DirectWrites* direct = mailbox_.path().direct_writes();
  if (direct != nullptr && target.region != 0 && direct->reach(target, data, bytes, registration)) {
    const std::optional<bool> writes = ask(kWriting, source, locations);
    if (!writes) return Method::kUnknown;
    if (*writes) return Method::kDirect;
  }
  if (location != 0 && static_cast<std::uint32_t>(locations) != 0 && device->pulls() != nullptr) {
    const std::optional<bool> pulls = ask(device->pulls()->key(*source), source, locations);
    if (!pulls) return Method::kUnknown;
    if (*pulls) return Method::kPulled;
  }
  return ask(kStaging, source, locations).value_or(false) ? Method::kStaged : Method::kUnknown;
}

WindowSender::CapabilityProbe* WindowSender::probe(std::uint64_t key, std::uint64_t locations) {
  const auto found = std::find_if(probes_.begin(), probes_.end(), [&](const CapabilityProbe& each) {
    return each.key == key && each.locations == locations;
  });
  return found == probes_.end() ? nullptr : &*found;
}

// @return nothing when it is not known yet: to be asked again
std::optional<bool> WindowSender::ask(std::uint64_t key, const Registration* source,
                                      std::uint64_t locations) {
  const CapabilityProbe* known = probe(key, locations);
  if (known != nullptr && known->answer) return known->answer;
  progress();
  if (mailbox_.failed()) return std::nullopt;
  try {
    if (const CapabilityProbe* asked = probe(key, locations)) return asked->answer;
    if (offering_) return std::nullopt;
    CapabilityProbe made{key, locations, std::nullopt, std::nullopt};
    if (!offer(made, source)) return std::nullopt;
    const DevicePulls* pulls = mailbox_.path().device_copies()->pulls();
    std::erase_if(probes_, [&](const CapabilityProbe& each) {
      return each.key != kStaging && each.key != kWriting && pulls->ended(each.key);
    });
    probes_.push_back(made);
    offering_ = !made.answer;
    return made.answer;
  } catch (const Error& error) {
    mailbox_.fail(error.code(), error.what());
    return std::nullopt;
  }
}

// @return whether it went, or is known by now; otherwise it is not possible just now
bool WindowSender::offer(CapabilityProbe& probe, const Registration* source) {
  if (probe.key == kStaging) return offer_stage(probe, source);
  if (probe.key == kWriting) return offer_direct(probe);
  return offer_pull(probe, *source);
}

bool WindowSender::offer_pull(CapabilityProbe& probe, const Registration& source) {
  DeviceCopies& device = *mailbox_.path().device_copies();
  DevicePulls& pulls = *device.pulls();
  const auto refuse = [&](const std::string& why) {
    log::info(log::kNet, "{}: GPU memory is staged: {}", driver_.name(), why);
    probe.answer = false;
    return true;
  };
  const std::optional<std::string> refused = pulls.offer(source);
  if (!refused) return false;
  if (!refused->empty()) return refuse(*refused);
  Entry entry;
  entry.command = Command::kOffer;
  entry.id = probe.locations;
  entry.payload[0] = probe.key;
  if (options_.verify &&
      std::find(checked_.begin(), checked_.end(), probe.locations) == checked_.end()) {
    try {
      const Registration& pattern = device.pattern_memory(source);
      const std::optional<std::string> no_pattern = pulls.offer(pattern);
      if (!no_pattern) return false;
      if (!no_pattern->empty()) return refuse(*no_pattern);
      entry.payload[1] = pulls.key(pattern);
    } catch (const Error& error) {  // out of device memory, say
      return refuse(error.what());
    }
    const std::span<const std::byte> bytes = device.pattern();
    entry.bytes = bytes.size();
    entry.payload[3] = checksum(bytes.data(), bytes.size());
    checked_.push_back(probe.locations);
  }
  mailbox_.write(entry);
  return true;
}

bool WindowSender::offer_stage(CapabilityProbe& probe, const Registration* source) {
  if (!options_.verify) {
    probe.answer = true;
    return true;
  }
  Path& path = mailbox_.path();
  DeviceCopies& device = *path.device_copies();
  const std::span<const std::byte> bytes = device.pattern();
  Piece piece;
  if (!take_bounce(bytes.size(), piece)) return false;
  const std::size_t offset =
      kBounceOffset + static_cast<std::size_t>(piece.position % kBounceBytes);
  if (probe.locations >> 32 == 0) {
    path.put(offset, bytes.data(), bytes.size());
  } else {
    RW_ASSERT(source != nullptr);  // asked for a GPU's location
    try {
      device.write_pattern(device.pattern_memory(*source), offset);
    } catch (const Error& error) {
      // The receiver will not find the pattern there, and says what that means.
      log::warn("{}: a pattern could not be staged: {}", driver_.name(), error.what());
    }
  }
  Entry entry;
  entry.command = Command::kOffer;
  entry.id = probe.locations;
  entry.bytes = bytes.size();
  entry.tag = piece.skipped;
  entry.payload[2] = piece.position;
  entry.payload[3] = checksum(bytes.data(), bytes.size());
  mailbox_.write(entry);
  return true;
}

bool WindowSender::offer_direct(CapabilityProbe& probe) {
  if (!options_.verify) {
    probe.answer = true;
    return true;
  }
  Entry entry;
  entry.command = Command::kTry;
  entry.id = probe.locations;
  mailbox_.write(entry);
  return true;
}

// If the receiver has named memory for a pattern.
void WindowSender::try_direct() {
  const auto asked = std::find_if(probes_.begin(), probes_.end(), [](const CapabilityProbe& each) {
    return each.target.has_value();
  });
  if (asked == probes_.end()) return;
  const auto idle =
      std::find_if(queues_.begin(), queues_.begin() + static_cast<std::ptrdiff_t>(path_queues_),
                   [](const Piece& piece) { return piece.message == nullptr; });
  const auto queue = static_cast<std::size_t>(idle - queues_.begin());
  if (queue == path_queues_) return;  // until one is
  Path& path = mailbox_.path();
  const Target target = *std::exchange(asked->target, std::nullopt);
  const std::string why_not =
      path.direct_writes()->try_direct(static_cast<int>(queue), target, asked->locations);
  if (!why_not.empty()) {
    path.direct_writes()->tried(asked->locations, why_not);
    asked->answer = false;
    offering_ = false;
    return;
  }
  const std::span<const std::byte> bytes = path.device_copies()->pattern();
  Entry entry;
  entry.command = Command::kTried;
  entry.id = asked->locations;
  entry.bytes = bytes.size();
  entry.payload[0] = kWriting;
  entry.payload[3] = checksum(bytes.data(), bytes.size());
  mailbox_.write(entry);
}

bool WindowSender::on_target(const Entry& entry) {
  CapabilityProbe* const asked = probe(kWriting, entry.id);
  if (!offering_ || asked == nullptr || asked->answer) return false;
  if (entry.payload[1] != 0) {
    asked->target = Target{entry.payload[1], entry.payload[2]};
  } else {
    asked->answer = false;
    offering_ = false;
  }
  return true;
}

bool WindowSender::on_answer(const Entry& entry) {
  CapabilityProbe* const asked = probe(entry.payload[0], entry.id);
  if (!offering_ || asked == nullptr || asked->answer) return false;
  asked->answer = entry.payload[1] != 0;
  offering_ = false;
  if (asked->key == kWriting && *asked->answer) {
    mailbox_.path().direct_writes()->tried(asked->locations, "");
  }
  return true;
}

}  // namespace ropewalk::transport::window
