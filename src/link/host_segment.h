// The memory that the ranks of one communicator on one host share: all their links' FIFOs.
//
// One sparse segment per communicator and host, laid out by arithmetic: channel, source and
// destination say where a link lies, so making a link needs no message. Memory is taken when a link
// is first used.
#pragma once

#include <cstddef>
#include <optional>

#include "core/shared_memory.h"
#include "executor/fifo.h"

namespace ropewalk::link {

class HostSegment {
 public:
  /// `ranks` of this host, `channels` of the communicator (point-to-point traffic included).
  struct Layout {
    int ranks = 1;
    int channels = 1;
    executor::FifoShape shape;
    [[nodiscard]] std::size_t link_stride() const noexcept;
    [[nodiscard]] std::size_t link_bytes() const noexcept;  ///< of all links
    [[nodiscard]] std::size_t bytes() const noexcept;
  };

  /// What the ranks share beside their links. Takes no memory until it is used.
  static constexpr std::size_t kBytesBesideLinks = std::size_t{4} << 20;

  HostSegment(const Layout& layout, SharedMemory memory);

  /// Memory of the link from local rank `source` to local rank `destination`.
  /// @throws Error kSystem when there is no memory for it
  std::byte* link(int channel, int source, int destination);

  /// The first `bytes` of that, at most kBytesBesideLinks: zeros until a rank writes them. Always
  /// at the same address.
  /// @throws Error kSystem if there is no memory for it
  std::byte* beside_links(std::size_t bytes);

  /// The slot header at `offset` of that link's memory, as it is now. A link that nobody has used
  /// reads as zeros and takes no memory.
  /// @return nothing if it could not be read
  [[nodiscard]] std::optional<executor::SlotHeader> peek(int channel, int source, int destination,
                                                         std::size_t offset) const;

  [[nodiscard]] int fd() const noexcept { return memory_.fd(); }
  [[nodiscard]] const Layout& layout() const noexcept { return layout_; }

 private:
  [[nodiscard]] std::size_t offset_of(int channel, int source, int destination) const;

  Layout layout_;
  SharedMemory memory_;
};

}  // namespace ropewalk::link
