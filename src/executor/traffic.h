// How many bytes a rank has sent to each peer, and over what: counted where chunks leave, read by
// who asks (comm/call_report.h).
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/mutex.h"

namespace ropewalk::executor {

/// Of one communicator on one rank. Threads: any, at any time; what several threads count at once
/// is added up.
class Traffic {
 public:
  class Counter {
   public:
    /// For the one thread that counts here.
    void add(std::uint64_t bytes) noexcept {
      bytes_.store(bytes_.load(std::memory_order_relaxed) + bytes, std::memory_order_relaxed);
    }
    /// For several.
    void add_shared(std::uint64_t bytes) noexcept {
      bytes_.fetch_add(bytes, std::memory_order_relaxed);
    }
    [[nodiscard]] std::uint64_t bytes() const noexcept {
      return bytes_.load(std::memory_order_relaxed);
    }

   private:
    std::atomic<std::uint64_t> bytes_{0};
  };

  /// The counter of what goes to `peer` over this: "shared memory", "tcp eth0". The same for the
  /// same arguments, as long as this lives.
  Counter& to(int peer, std::string_view over) {
    const Lock lock(mutex_);
    return counters_[{peer, std::string(over)}];
  }

  struct Entry {
    int peer = -1;
    std::string over;
    std::uint64_t bytes = 0;
  };
  /// By peer. Only what something went over.
  [[nodiscard]] std::vector<Entry> read() const {
    const Lock lock(mutex_);
    std::vector<Entry> entries;
    for (const auto& [key, counter] : counters_) {
      if (counter.bytes() > 0) entries.push_back({key.first, key.second, counter.bytes()});
    }
    return entries;
  }

 private:
  mutable Mutex mutex_;
  std::map<std::pair<int, std::string>, Counter> counters_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::executor
