// Memory shared between the processes of one host, without a name in any file system.
//
// A segment is an anonymous file (memfd), or an unnamed file in /dev/shm (O_TMPFILE): a killed job
// leaves nothing behind. It is handed to other processes as a file descriptor
// (core/descriptor_server.h). A segment is sparse: memory is taken by reserve(), which fails with
// an error where the first touch would have killed the process.
//
// Ranks of one process may have one mapping together (map_once()): its pages are faulted in once,
// and the thread sanitizer, which knows memory by its address, sees that they use the same. What
// can be done only once to a mapping, such as registering it with a GPU's driver, they have
// together as well (attach_once()).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string_view>

#include "core/file_descriptor.h"

namespace ropewalk {

/// Where a segment's memory comes from (setting SHM_BACKING). kAuto: memfd, else /dev/shm.
enum class ShmBacking { kAuto, kMemfd, kDevShm };
ShmBacking parse_shm_backing(std::string_view text);

/// A mapped segment. Threads: reserve() may be called by several at once.
class SharedMemory {
 public:
  /// Creates and maps `bytes` (rounded up to pages) of sparse zeroed memory.
  /// @throws Error kSystem; for /dev/shm the message gives its size and free space
  static SharedMemory create(std::size_t bytes, ShmBacking backing);

  /// Maps a segment received from another process; checks that it has at least `bytes`.
  static SharedMemory map(FileDescriptor fd, std::size_t bytes);

  /// The same, but by the mapping that this process has of the segment already, if it has one that
  /// create() or map_once() made, and it is large enough. It is unmapped with its last user. Who
  /// registers the memory with CUDA does so by attach_once(): CUDA takes an address once.
  static SharedMemory map_once(FileDescriptor fd, std::size_t bytes);

  /// What the users of a mapping have of it together. Its destructor undoes what was done.
  class Attachment {
   public:
    Attachment() = default;
    virtual ~Attachment() = default;
    Attachment(const Attachment&) = delete;
    Attachment& operator=(const Attachment&) = delete;
  };
  using MakeAttachment =
      std::function<std::unique_ptr<Attachment>(std::span<std::byte> whole_mapping)>;

  /// The mapping's attachment called `key`; made by `make` if nobody has it. Each call gives a
  /// share of its own. With the last share the attachment is destroyed, and while that lasts a call
  /// for the same mapping waits, so that `make` never meets what is still to be undone. A share
  /// keeps the mapping. When `make` throws, nothing is attached, and the next call tries again.
  ///
  /// Threads: any. `make` and the destructor run with a lock of this mapping alone: they may wait
  /// for a driver, but must not use this function.
  ///
  /// @throws what `make` throws
  [[nodiscard]] std::shared_ptr<Attachment> attach_once(const void* key,
                                                        const MakeAttachment& make) const;

  SharedMemory(SharedMemory&&) noexcept = default;
  SharedMemory& operator=(SharedMemory&&) noexcept = default;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory() = default;

  /// Makes sure that the range has memory behind it (fallocate); cheap to repeat.
  /// @throws Error kSystem "needed X, /dev/shm is Y with Z free" when there is none
  void reserve(std::size_t offset, std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t size() const noexcept { return size_; }
  [[nodiscard]] int fd() const noexcept { return fd_.get(); }

 private:
  class Mapping;
  SharedMemory(FileDescriptor fd, std::shared_ptr<Mapping> mapping, std::size_t size, bool dev_shm);
  static SharedMemory of_peer(FileDescriptor fd, std::size_t bytes, bool once);
  FileDescriptor fd_;
  std::shared_ptr<Mapping> mapping_;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  bool dev_shm_ = false;
  std::unique_ptr<std::atomic<std::uint64_t>[]> reserved_;  // a bit per page
};

}  // namespace ropewalk
