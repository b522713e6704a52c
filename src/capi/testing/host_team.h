// Threads of the host that call the functions of ropewalk/device.cuh together, as a warp does, and
// ranks that are threads of this process, by the C API.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <thread>
#include <vector>

#include "ropewalk/ropewalk.h"

namespace ropewalk::capi::testing {

constexpr int kLanes = 3;

/// One of kLanes threads.
class Team {
 public:
  struct Shared {
    std::barrier<> barrier{kLanes};
    std::atomic<int> bits{0};
  };
  Team(Shared& shared, unsigned rank) : shared_(&shared), rank_(rank) {}
  [[nodiscard]] unsigned rank() const { return rank_; }
  [[nodiscard]] static unsigned size() { return kLanes; }
  void sync() const { shared_->barrier.arrive_and_wait(); }
  [[nodiscard]] int any(int value) const {
    shared_->bits |= value;
    sync();
    const int result = shared_->bits;
    sync();
    if (rank_ == 0) shared_->bits = 0;
    sync();
    return result;
  }

 private:
  Shared* shared_;
  unsigned rank_;
};

/// Has a team's threads run `body`.
inline void with_team(const std::function<void(const Team&)>& body) {
  Team::Shared shared;
  std::vector<std::thread> lanes;
  lanes.reserve(kLanes);
  for (unsigned lane = 0; lane < kLanes; ++lane) {
    lanes.emplace_back([&, lane] { body(Team(shared, lane)); });
  }
  for (std::thread& lane : lanes) lane.join();
}

inline void check(rwResult_t result) { ASSERT_EQ(result, rwSuccess) << rwGetLastError(nullptr); }

inline void set(const char* name, const char* value) { check(rwSettingSet(name, value, "test")); }

struct Rank {
  rwComm_t comm = nullptr;
  int rank = 0;
  int size = 0;
};

/// Runs `body` on each rank, in threads of this process.
inline void with_ranks(int size, const std::function<void(Rank&)>& body, bool ends_well = true) {
  rwUniqueId id;
  check(rwGetUniqueId(&id));
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      Rank rank;
      rank.rank = r;
      rank.size = size;
      const rwResult_t joined = rwCommInitRank(&rank.comm, size, id, r);
      ASSERT_EQ(joined, rwSuccess) << rwGetLastError(nullptr);
      body(rank);
      if (rank.comm == nullptr) return;  // the body ended it
      if (ends_well) {
        check(rwCommDestroy(rank.comm));
      } else {
        (void)rwCommAbort(rank.comm);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Has `between` the ranks what it names: "memory", or a transport.
inline void set_links(const std::string& between) {
  set("TUNE", "0");
  set("TOPOLOGY_CACHE", "off");
  set("TIMEOUT", "60s");
  set("LINKS", between == "memory" ? "auto" : "network");
  set("NET", between == "memory" ? "auto" : between.c_str());
}
inline void reset_links() { set_links("memory"); }

}  // namespace ropewalk::capi::testing
