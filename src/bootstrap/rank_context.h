// What the parts of one rank share (bootstrap_rank.h). Service thread only.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

#include "bootstrap/join_protocol.h"
#include "bootstrap/rank_status.h"
#include "bootstrap/timer_set.h"
#include "bootstrap/unique_id.h"
#include "core/deadline.h"

namespace ropewalk::bootstrap {

struct RankOptions {
  UniqueIdParts id;
  int rank = 0;
  int size = 0;
  std::string interfaces;  // SOCKET_IFNAME
  std::chrono::nanoseconds peer_loss_time{};
  Deadline join_deadline;
};

struct RankContext {
  RankContext(Service& its_service, RankOptions its_options)
      : service(its_service),
        options(std::move(its_options)),
        status(options.rank, options.size > kMaxRanks ? 1 : std::max(options.size, 1)),
        timers(its_service) {}
  ~RankContext() = default;
  RankContext(const RankContext&) = delete;
  RankContext& operator=(const RankContext&) = delete;

  [[nodiscard]] RankPhase phase() const noexcept { return status.phase(); }
  [[nodiscard]] bool closed() const noexcept { return phase() == RankPhase::kClosed; }
  [[nodiscard]] const Membership& membership() const noexcept { return status.membership(); }
  [[nodiscard]] bool alive(int peer) const {
    return membership().state(peer) == Membership::State::kAlive;
  }
  [[nodiscard]] const RankRecord& record(int peer) const {
    return table[static_cast<std::size_t>(peer)];
  }

  Service& service;
  const RankOptions options;
  RankStatus status;
  /// Of all ranks; empty until the root has sent it, constant afterwards.
  std::vector<RankRecord> table;
  /// Cleared when joining ends, and when the rank closes.
  TimerSet timers;
  /// Runs a task after the current events; the rank lives until then.
  std::function<void(Service::Task)> defer;
};

}  // namespace ropewalk::bootstrap
