// Passing device memory to the other end of a connection: packets over its Unix socket, and answers
// over the same socket.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/file_descriptor.h"
#include "core/mutex.h"
#include "transport/window/cuda_ipc/device_memory.h"

namespace ropewalk::transport::window {

/// Parts of a registration. PyTorch's expandable segments are of 20 MiB.
inline constexpr std::size_t kMaxSegments = 1024;

/// What the receiving end says.
enum class Answer : std::uint32_t {
  kTakesDeviceMemory = 1,  ///< it opens memory when its offer arrives
  kOpened = 2,             ///< the memory offered under a key is open, or cannot be opened
};
/// Never waits: an answer for which there is no room is lost, and the wait for it times out.
void send_answer(int socket, Answer answer, std::uint64_t key = 0);

/// The sending end's. Threads: offer() by one at a time, the others by any. Only await() waits.
class OfferLine {
 public:
  explicit OfferLine(int socket) : socket_(socket) {}
  /// As DeviceCopies::offer().
  std::optional<std::string> offer(const DeviceMemory& memory);
  /// Waits until the other end has answered for `keys`, if it is one that does; `patience` at most.
  void await(std::span<const std::uint64_t> keys, std::chrono::milliseconds patience);
  /// Tells the other end to close the memory offered under `key`, if any.
  void withdraw(std::uint64_t key);
  /// The socket is about to be closed.
  void close();

 private:
  bool flush() RW_REQUIRES(mutex_);
  void read_answers() RW_REQUIRES(mutex_);

  Mutex mutex_;
  int socket_ RW_GUARDED_BY(mutex_);
  std::set<std::uint64_t> offered_ RW_GUARDED_BY(mutex_);
  // Of an offer that the socket had no room for: how many parts went.
  std::uint64_t partly_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t sent_ RW_GUARDED_BY(mutex_) = 0;
  std::deque<std::uint64_t> withdrawn_ RW_GUARDED_BY(mutex_);  // not sent yet
  bool answers_ RW_GUARDED_BY(mutex_) = false;
  std::set<std::uint64_t> opened_ RW_GUARDED_BY(mutex_);
};

/// What an offer says, at the receiving end.
struct OfferedMemory {
  CuUuid gpu;
  bool virtual_memory = false;
  bool constant = false;   ///< nobody writes it
  CuPointer address = 0;   ///< in the sender's process
  std::size_t offset = 0;  ///< in the first segment
  std::size_t bytes = 0;
  std::size_t num_segments = 0;
  std::vector<Segment> segments;
};

/// The receiving end's. Threads: one at a time.
class OfferReader {
 public:
  /// Keys of offers that are complete now, and of those that were withdrawn.
  struct Came {
    std::vector<std::uint64_t> offered;
    std::vector<std::uint64_t> withdrawn;
  };
  /// Reads what has come.
  Came read(int socket);
  /// Of the complete offers.
  [[nodiscard]] std::vector<std::uint64_t> keys() const;
  /// Null until all of it has come.
  [[nodiscard]] std::shared_ptr<const OfferedMemory> find(std::uint64_t key) const;

 private:
  std::map<std::uint64_t, std::shared_ptr<OfferedMemory>> offers_;
};

}  // namespace ropewalk::transport::window
