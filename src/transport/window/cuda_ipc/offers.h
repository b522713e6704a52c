// How device memory is handed to the other end of a connection: packets over its Unix socket.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/mutex.h"
#include "transport/window/cuda_ipc/device_memory.h"

namespace ropewalk::transport::window {

/// Parts of a registration. PyTorch's expandable segments are of 20 MiB.
inline constexpr std::size_t kMaxSegments = 1024;

/// The sending end's. Threads: offer() by one, the others by any. Nothing waits.
class OfferLine {
 public:
  explicit OfferLine(int socket) : socket_(socket) {}
  /// As DeviceCopies::offer().
  std::optional<std::string> offer(const DeviceMemory& memory);
  /// Tells the other end to close what was offered under `key`, if it was.
  void withdraw(std::uint64_t key);
  /// The socket is about to be closed.
  void close();

 private:
  bool flush() RW_REQUIRES(mutex_);

  Mutex mutex_;
  int socket_ RW_GUARDED_BY(mutex_);
  std::set<std::uint64_t> offered_ RW_GUARDED_BY(mutex_);
  // Of an offer that the socket had no room for: how many parts went.
  std::uint64_t partly_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t sent_ RW_GUARDED_BY(mutex_) = 0;
  std::deque<std::uint64_t> withdrawn_ RW_GUARDED_BY(mutex_);  // not told yet
};

/// What an offer says, at the receiving end.
struct OfferedMemory {
  CuUuid gpu;
  bool virtual_memory = false;
  CuPointer address = 0;   ///< in the sender's process
  std::size_t offset = 0;  ///< in the first segment
  std::size_t bytes = 0;
  std::size_t num_segments = 0;
  std::vector<Segment> segments;
};

/// The receiving end's. Threads: one at a time.
class OfferReader {
 public:
  /// Reads what has come. @return keys whose offers were withdrawn
  std::vector<std::uint64_t> read(int socket);
  /// Null until all of it has come.
  [[nodiscard]] std::shared_ptr<const OfferedMemory> find(std::uint64_t key) const;

 private:
  std::map<std::uint64_t, std::shared_ptr<OfferedMemory>> offers_;
};

}  // namespace ropewalk::transport::window
