#include "link/host_segment.h"

#include <unistd.h>

#include <utility>

#include "core/error.h"

namespace ropewalk::link {
namespace {

constexpr std::size_t kPageBytes = 4096;

}  // namespace

std::size_t HostSegment::Layout::link_stride() const noexcept {
  return (shape.bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::size_t HostSegment::Layout::bytes() const noexcept { return link_bytes() + kBytesBesideLinks; }

std::size_t HostSegment::Layout::link_bytes() const noexcept {
  const auto n = static_cast<std::size_t>(ranks);
  return static_cast<std::size_t>(channels) * n * n * link_stride();
}

HostSegment::HostSegment(const Layout& layout, SharedMemory memory)
    : layout_(layout), memory_(std::move(memory)) {
  RW_ASSERT(memory_.size() >= layout_.bytes());
}

std::size_t HostSegment::offset_of(int channel, int source, int destination) const {
  RW_ASSERT(channel >= 0 && channel < layout_.channels);
  RW_ASSERT(source >= 0 && source < layout_.ranks);
  RW_ASSERT(destination >= 0 && destination < layout_.ranks);
  const auto n = static_cast<std::size_t>(layout_.ranks);
  const std::size_t index =
      (static_cast<std::size_t>(channel) * n + static_cast<std::size_t>(source)) * n +
      static_cast<std::size_t>(destination);
  return index * layout_.link_stride();
}

std::byte* HostSegment::link(int channel, int source, int destination) {
  const std::size_t offset = offset_of(channel, source, destination);
  // Both ends reserve: whichever comes first pays, and neither can touch memory that is not there.
  memory_.reserve(offset, layout_.link_stride());
  return memory_.data() + offset;
}

std::byte* HostSegment::beside_links(std::size_t bytes) {
  RW_ASSERT(bytes <= kBytesBesideLinks);
  memory_.reserve(layout_.link_bytes(), bytes);
  return memory_.data() + layout_.link_bytes();
}

std::optional<executor::SlotHeader> HostSegment::peek(int channel, int source, int destination,
                                                      std::size_t offset) const {
  executor::SlotHeader header{};
  RW_ASSERT(offset + sizeof header <= layout_.link_stride());
  const std::size_t position = offset_of(channel, source, destination) + offset;
  const ssize_t got = pread(memory_.fd(), &header, sizeof header, static_cast<off_t>(position));
  if (got != static_cast<ssize_t>(sizeof header)) return std::nullopt;
  return header;
}

}  // namespace ropewalk::link
