#include "link/registered_buffers.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::link {
namespace {

constexpr std::uint32_t kRemovedTag = 0x46000000;

std::uint64_t address_of(const void* pointer) { return reinterpret_cast<std::uint64_t>(pointer); }
const void* pointer_to(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

Error not_registered(std::uint64_t number) {
  return {Errc::kInvalidArgument, "{} is not registered with this communicator", number};
}

}  // namespace

// A rank's offer of its buffer to the others.
struct RegisteredBuffers::Offer {
  std::uint64_t told = 0;  // removals that it has announced before
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  MemorySharing::Location location;
  bool shared = false;
  bool mapped = false;  // by other means than its location
  bool symmetric = false;
  std::int32_t code = 0;  // Errc, of a fault
  char fault[160] = {};
};

RegisteredBuffers::RegisteredBuffers(bootstrap::Bootstrap& bootstrap,
                                     std::unique_ptr<MemorySharing> sharing,
                                     std::vector<bool> elsewhere, bool opens,
                                     std::vector<bool> beyond)
    : bootstrap_(bootstrap),
      sharing_(std::move(sharing)),
      elsewhere_(std::move(elsewhere)),
      beyond_(std::move(beyond)),
      opens_(opens),
      heard_(elsewhere_.size(), 0) {
  beyond_.resize(elsewhere_.size(), false);
}

RegisteredBuffers::Offer RegisteredBuffers::offer_of(const BufferRange& buffer, bool mapped) {
  Offer offer;
  offer.told = told_;
  offer.begin = address_of(buffer.begin);
  offer.bytes = buffer.bytes;
  offer.mapped = mapped;
  if (mapped) return offer;
  try {
    if (buffer.begin == nullptr) throw Error(Errc::kInvalidArgument, "buffer: NULL");
    if (buffer.bytes == 0) throw Error(Errc::kInvalidArgument, "buffer: 0 bytes");
    const std::optional<MemorySharing::Location> location = sharing_->location_of(buffer);
    offer.shared = location.has_value();
    if (offer.shared) {
      offer.location = *location;
    } else {
      log::info(log::kAlloc,
                "rank {}: other processes cannot open the memory at {}, which cudaMalloc did not "
                "give; what is in it is staged for them",
                bootstrap_.rank(), buffer.begin);
    }
  } catch (const Error& error) {
    offer.code = static_cast<std::int32_t>(error.code());
    std::string_view(error.what()).copy(offer.fault, sizeof offer.fault - 1);
  }
  return offer;
}

std::shared_ptr<std::byte> RegisteredBuffers::opened_from(std::size_t rank, const Offer& offer) {
  if (!opens_ || !offer.shared) return nullptr;
  try {
    std::shared_ptr<std::byte> whole =
        sharing_->open(static_cast<int>(rank), offer.location.handle);
    std::byte* address = whole.get() + offer.location.offset;
    return {std::move(whole), address};
  } catch (const Error& error) {
    log::info(log::kAlloc, "rank {} cannot read the buffer of rank {}, which stages it: {}",
              bootstrap_.rank(), rank, error.what());
    return nullptr;
  }
}

void RegisteredBuffers::await_removals(std::size_t rank, std::uint64_t count, Deadline deadline) {
  while (heard_[rank] < count) {
    note_removal(rank, bootstrap_.recv(static_cast<int>(rank), kRemovedTag, deadline));
  }
}

void RegisteredBuffers::note_removal(std::size_t rank, const std::vector<std::byte>& message) {
  ++heard_[rank];
  std::uint64_t number = 0;
  RW_ASSERT(message.size() == sizeof number);
  std::memcpy(&number, message.data(), sizeof number);
  // Nothing is written where a rank may have other memory now.
  if (const auto own = own_.find(number); own != own_.end()) own->second.symmetric_bytes = 0;
  const auto found = opened_.find(number);
  if (found == opened_.end()) return;
  MappedBuffers& opened = found->second;
  opened[rank].reset();
  if (std::any_of(opened.begin(), opened.end(), [](const auto& one) { return one != nullptr; })) {
    return;
  }
  opened_.erase(found);
  awaited_.erase(number);
}

std::uint64_t RegisteredBuffers::add(const BufferRange& buffer, Deadline deadline,
                                     MappedBuffers mapped, bool symmetric) {
  const std::size_t n = elsewhere_.size();
  const auto rank = static_cast<std::size_t>(bootstrap_.rank());
  std::vector<Offer> offers(n);
  offers[rank] = offer_of(buffer, !mapped.empty());
  offers[rank].symmetric = symmetric;
  const bool maps = !mapped.empty() && opens_;
  mapped.resize(n);
  bootstrap_.all_gather(std::as_writable_bytes(std::span(offers)), sizeof(Offer), deadline);
  const std::uint64_t number = ++last_number_;
  for (std::size_t r = 0; r < n; ++r) {
    if (offers[r].fault[0] == '\0') continue;
    throw Error(static_cast<Errc>(offers[r].code), "rank {}: {}", r, offers[r].fault);
  }

  MappedBuffers opened(n);
  // [r][owner]: where rank r sees the owner's buffer; behind them, whether it reaches all.
  const std::size_t row = n + 1;
  std::vector<std::uint64_t> seen(n * row, 0);
  Own own{address_of(buffer.begin), buffer.bytes, {}, {}, 0, {}};
  bool reaches_all = true;
  for (std::size_t r = 0; r < n; ++r) {
    if (elsewhere_[r]) {
      await_removals(r, offers[r].told, deadline);
      opened[r] = offers[r].mapped ? mapped[r] : opened_from(r, offers[r]);
      if (!opens_) opened[r].reset();
      seen[rank * row + r] = address_of(opened[r].get());
    }
    // Ranks of one process have the same addresses.
    const bool here = r == rank || (!elsewhere_[r] && !beyond_[r] && opens_ && offers[r].shared);
    const void* begin = here ? pointer_to(offers[r].begin) : opened[r].get();
    if (begin == nullptr && maps && offers[r].mapped && !beyond_[r]) begin = mapped[r].get();
    own.reached.push_back({begin, begin == nullptr ? 0 : offers[r].bytes});
    reaches_all = reaches_all && begin != nullptr;
  }
  seen[rank * row + n] = reaches_all ? 1 : 0;
  bootstrap_.all_gather(std::as_writable_bytes(std::span(seen)), row * sizeof(std::uint64_t),
                        deadline);
  std::uint64_t least = offers[rank].bytes;
  for (std::size_t r = 0; r < n; ++r) {
    own.seen_at.push_back(seen[r * row + rank]);
    const bool holds = offers[r].symmetric && seen[r * row + n] != 0;
    least = holds ? std::min(least, offers[r].bytes) : 0;
  }
  own.symmetric_bytes = least;
  if (least != 0 && maps) own.mapped = std::move(mapped);
  own_.emplace(number, std::move(own));
  if (std::any_of(opened.begin(), opened.end(), [](const auto& one) { return one != nullptr; })) {
    opened_[number] = std::move(opened);
  }
  return number;
}

const std::vector<BufferRange>& RegisteredBuffers::reached(std::uint64_t number) const {
  const auto found = own_.find(number);
  if (found == own_.end()) throw not_registered(number);
  return found->second.reached;
}

std::optional<RegisteredBuffers::SymmetricLocation> RegisteredBuffers::symmetric_location(
    const BufferRange& buffer) const noexcept {
  const std::uint64_t begin = address_of(buffer.begin);
  for (const auto& [number, own] : own_) {
    if (begin < own.begin || buffer.bytes > own.symmetric_bytes ||
        begin - own.begin > own.symmetric_bytes - buffer.bytes) {
      continue;
    }
    return SymmetricLocation{number, begin - own.begin, &own.reached};
  }
  return {};
}

void RegisteredBuffers::remove(std::uint64_t number) {
  const auto found = own_.find(number);
  if (found == own_.end()) throw not_registered(number);
  if (!found->second.mapped.empty()) retired_.push_back(std::move(found->second.mapped));
  own_.erase(found);
  if (opened_.contains(number)) awaited_.insert(number);
  untold_.push_back(number);
}

bool RegisteredBuffers::settle() noexcept {
  bool heard = false;
  retired_.clear();
  told_ += untold_.size();
  for (std::size_t r = 0; r < elsewhere_.size(); ++r) {
    if (!elsewhere_[r]) continue;
    const int rank = static_cast<int>(r);
    try {
      for (const std::uint64_t number : untold_) {
        bootstrap_.send(rank, kRemovedTag, std::as_bytes(std::span(&number, 1)));
      }
      while (const auto message = bootstrap_.try_recv(rank, kRemovedTag)) {
        note_removal(r, *message);
        heard = true;
      }
    } catch (const Error&) {
      // A rank that is lost reads nothing any more. Its own memory stays open to the end: a kernel
      // here may be reading it.
    }
  }
  untold_.clear();
  return heard;
}

void RegisteredBuffers::close_all() noexcept {
  own_.clear();
  retired_.clear();
  opened_.clear();
  awaited_.clear();
  untold_.clear();
}

std::optional<std::int64_t> RegisteredBuffers::seen_by(int peer,
                                                       const BufferRange& buffer) const noexcept {
  if (buffer.bytes == 0) return 0;
  const std::uint64_t begin = address_of(buffer.begin);
  for (const auto& [number, own] : own_) {
    const std::uint64_t there = own.seen_at[static_cast<std::size_t>(peer)];
    if (there == 0 || begin < own.begin || buffer.bytes > own.bytes ||
        begin - own.begin > own.bytes - buffer.bytes) {
      continue;
    }
    return static_cast<std::int64_t>(there - own.begin);
  }
  return {};
}

std::optional<executor::Shift> RegisteredBuffers::seen_by(
    int peer, const BufferRange& input, const BufferRange& output) const noexcept {
  const std::optional<std::int64_t> of_input = seen_by(peer, input);
  const std::optional<std::int64_t> of_output = seen_by(peer, output);
  if (!of_input.has_value() || !of_output.has_value()) return {};
  return executor::Shift{*of_input, *of_output};
}

}  // namespace ropewalk::link
