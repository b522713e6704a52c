// Broadcast segments: what a program stores into the segment of node 252 reaches the segments of
// that id on all nodes, its own among them, as PCI Express multicast brings it there.
//
// There is nothing to connect to. A group is the broadcast segments of one id that are available;
// who belongs to it is looked up for each store, so segments may come and go.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

#include "fabric.h"

namespace software_sisci {

class Library;

/// A group as one connected segment sees it. Threads: any.
class Group {
 public:
  struct Member {
    const SegmentEntry* entry = nullptr;
    std::uint64_t generation = 0;
    std::uint64_t number = 0;  // in the order in which this group saw them, from 1
    unsigned host = 0;
    std::size_t bytes = 0;
    int file = -1;
    std::byte* memory = nullptr;
  };

  Group(unsigned id, unsigned adapter) : id_(id), adapter_(adapter) {}
  ~Group();
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  /// Of the smallest segment; 0 when there is none.
  std::size_t bytes(Library& library);
  /// Calls `visit` for each member that the links lead to. @return the number of the newest
  std::uint64_t for_each(Library& library, const std::function<void(const Member&)>& visit);
  /// Stores into all of them.
  void store(Library& library, std::size_t offset, const std::byte* data, std::size_t bytes);

 private:
  void look(Library& library);
  bool known(const SegmentEntry& entry) const;

  const unsigned id_;
  const unsigned adapter_;
  std::mutex lock_;
  std::vector<Member> members_;
  std::uint64_t newest_ = 0;
  bool looked_ = false;
  std::uint32_t seen_ = 0;  // of the fabric's changes
};

/// Bytes of a map that were stored, within one aligned word of eight: the smallest aligned block
/// that holds them, since a store of a program is one.
struct Block {
  std::size_t offset = 0;
  std::size_t bytes = 0;
};

/// What differs between two buffers of `words` words.
/// @param before null: zeros
std::vector<Block> blocks_that_differ(const std::byte* now, const std::byte* before,
                                      std::size_t words);
/// Stores a block at once, as seen by whoever reads it.
void store_block(std::byte* target, const std::byte* source, std::size_t bytes);

}  // namespace software_sisci
