// Windows between ranks of different hosts that plain stores reach: memory that one rank exposes
// and another one has mapped. Containers of one machine share memory so, hosts that a PCIe bridge
// joins write each other's segments.
//
// Two ranks have one path of a window driver (transport/window/driver.h), which gives each of them
// a window that the other one writes. Links lie in them as in the memory of one host, without a
// thread or a transport's messages between: whoever stores into a link's FIFO, a GPU's kernel say,
// has sent. Nobody reads the other's window, since loads across a bridge take long.
//
// Which pairs have windows is agreed: a pair that one of the two ranks could not set up has none.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/mutex.h"
#include "link/peer_access.h"
#include "transport/window/driver.h"

namespace ropewalk::link {

/// Threads: one at a time, but for lost().
class MappedWindows {
 public:
  using Drivers = std::vector<std::unique_ptr<transport::window::Driver>>;

  /// Collective: sets up a window of `bytes` for each end of each two ranks of different hosts, by
  /// the first driver that can. `drivers`: the same kinds on all ranks. What a driver cannot do is
  /// logged and no error.
  /// @throws as Bootstrap::all_gather
  MappedWindows(bootstrap::Bootstrap& bootstrap, Drivers drivers, std::vector<int> host_of_rank,
                std::size_t bytes, Deadline deadline);
  ~MappedWindows();
  MappedWindows(const MappedWindows&) = delete;
  MappedWindows& operator=(const MappedWindows&) = delete;

  /// Whether this rank and another one have windows.
  [[nodiscard]] bool between(int peer) const noexcept {
    return ends_[static_cast<std::size_t>(peer)].path != nullptr;
  }
  /// All pairs that have windows, in order. The same on all ranks.
  [[nodiscard]] const std::vector<RankPair>& pairs() const noexcept { return pairs_; }
  /// Every two ranks of different hosts have.
  [[nodiscard]] bool complete() const noexcept;
  /// This rank's window, which `peer` writes, zero at first; and the one of `peer`, to be written.
  /// @pre between(peer)
  [[nodiscard]] std::byte* own(int peer) const { return end(peer).path->window(); }
  [[nodiscard]] std::byte* theirs(int peer) const { return end(peer).path->other_window(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  /// Of the drivers in use, such as "shm"; empty for none.
  [[nodiscard]] std::string name() const;

  /// Collective: gives up the windows with peers that this rank or the peer finds unfit. By rank.
  void keep(bootstrap::Bootstrap& bootstrap, const std::vector<bool>& fit);

  /// From now on a thread looks whether peers are still there; for the first that is not it calls
  /// `on_loss` once.
  void watch(std::function<void()> on_loss);
  void stop_watching() noexcept;
  /// This rank is about to leave: peers that watch do not take that for a loss. Ends its own watch.
  void say_goodbye() noexcept;
  /// Who was lost and why. Any thread.
  [[nodiscard]] std::optional<Error> lost() const;

 private:
  using Path = transport::window::Path;
  struct End {
    std::unique_ptr<Path> path;
    std::size_t driver = 0;
  };
  class Meeting;

  [[nodiscard]] const End& end(int peer) const { return ends_[static_cast<std::size_t>(peer)]; }
  // Of this rank's ends what both ranks of a pair have.
  void agree(bootstrap::Bootstrap& bootstrap);
  void run(const std::function<void()>& on_loss);
  [[nodiscard]] std::optional<Error> look();

  int rank_;
  int size_;
  std::vector<int> host_of_rank_;
  std::size_t bytes_;
  Drivers drivers_;  // outlive the paths
  std::vector<End> ends_;
  std::vector<RankPair> pairs_;
  std::atomic<bool> stop_{false};
  std::thread watcher_;
  mutable Mutex mutex_;
  std::optional<Error> lost_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::link
