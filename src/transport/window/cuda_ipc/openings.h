// What the other end of a connection offered, and what of it is open here.
//
// Memory is opened when it is offered, not when a message first needs it: opening may wait until a
// GPU's kernels are done, and a kernel may be waiting for that very message. So the receiving end
// says that it takes device memory, reads offers as they come, and answers each when it is open.
// The end that registers memory last waits for this answer, so that a message finds its memory
// open.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "core/mutex.h"
#include "transport/window/cuda_ipc/offers.h"
#include "transport/window/cuda_ipc/opened_memory.h"
#include "transport/window/cuda_ipc/worker.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {

/// The receiving end's. Threads: any.
class Openings : public std::enable_shared_from_this<Openings> {
 public:
  Openings(Worker& worker, Gpus& gpus, int socket);
  /// The socket is about to be closed. Called before the last reference goes.
  void close();

  /// From now on opens offered memory for `gpu`. Waits for a short time until all offers so far are
  /// open, or have failed.
  void expect(Gpu& gpu);
  /// Reads arrived packets: closes withdrawn memory.
  void read();
  /// @return nothing while it is being opened; else why it cannot be, empty for success
  std::optional<std::string> open(std::uint64_t key, int ordinal);
  /// Null when it is not open.
  [[nodiscard]] std::shared_ptr<const OpenedMemory> find(std::uint64_t key, int ordinal) const;

 private:
  using Which = std::pair<std::uint64_t, int>;  // key, ordinal
  void read_offers() RW_REQUIRES(mutex_);
  void open_expected(std::uint64_t key) RW_REQUIRES(mutex_);
  std::shared_ptr<Opening> start(Which which) RW_REQUIRES(mutex_);
  void answer(std::uint64_t key);
  [[nodiscard]] bool all_finished() const;

  Worker& worker_;
  Gpus& gpus_;
  const bool same_process_;
  mutable Mutex mutex_;
  int socket_ RW_GUARDED_BY(mutex_);
  OfferReader offers_ RW_GUARDED_BY(mutex_);
  std::set<int> expecting_ RW_GUARDED_BY(mutex_);  // ordinals
  std::map<Which, std::shared_ptr<Opening>> openings_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::transport::window
