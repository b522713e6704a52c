// Runs collective calls on host memory: by the walker (executor/walker.h), in the calling thread.
#pragma once

#include <map>
#include <memory>

#include "comm/executor.h"
#include "comm/prepared.h"
#include "executor/host/host_team.h"
#include "executor/host/warm_buffers.h"
#include "schedule/checked.h"

namespace ropewalk::comm {

/// A call whose strands are those of its schedule, which calls of other shapes share.
class HostCall final : public PreparedCall {
 public:
  HostCall(const CollectiveCall& call, const Extent& extent,
           std::shared_ptr<const tune::Choice> choice, PreparedCollective& collective)
      : PreparedCall(call, extent, std::move(choice)), collective_(collective) {}
  [[nodiscard]] PreparedCollective& collective() const noexcept { return collective_; }

 private:
  PreparedCollective& collective_;
};

class HostExecutor final : public Executor {
 public:
  struct Options {
    int rank = 0;
    int num_ranks = 1;
    int max_channels = 1;
    std::uint32_t lag_slots = 0;  ///< as PreparedCollective's
    bool check_tags = true;
  };
  /// @param team outlives it
  HostExecutor(executor::HostTeam& team, const Options& options)
      : team_(team),
        options_(options),
        warm_(executor::WarmBuffers::cache_bytes_of_each(options.num_ranks)) {}

  std::unique_ptr<PreparedCall> prepare(const CollectiveCall& call, const Extent& extent,
                                        std::shared_ptr<const tune::Choice> choice) override;
  /// Its links must be connected, by PreparedCollective::connect().
  bool run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
           const executor::CallTag& tag, DeviceStream stream) override;
  /// The last call of these strands once more, with the same buffers, as call `number`.
  bool run_again(PreparedCollective& collective, std::uint32_t number) {
    collective.arm_again(number);
    executor::Call& call = collective.call();
    // The buffers of the last call are warm now, if they are not longer than the caches.
    if (call.cold_input || call.cold_output) [[unlikely]]
      note_buffers(call);
    team_.history().record(collective.call().tag);
    return walk(collective);
  }
  void retire(std::unique_ptr<PreparedCall> prepared) override { prepared.reset(); }
  void forget_schedules() override;
  [[nodiscard]] int max_channels() const noexcept override { return options_.max_channels; }

  /// Sets the call's strands to its start, and notes its tag. @pre the links are connected
  void arm(const HostCall& prepared, const CollectiveCall& call, bool in_place,
           const executor::CallTag& tag);

 private:
  // Says which of a call's buffers no cache holds.
  void note_buffers(executor::Call& call) noexcept;
  // @return true when all strands are at their ends
  bool walk(PreparedCollective& collective);

  executor::HostTeam& team_;
  Options options_;
  executor::WarmBuffers warm_;
  Extent extent_;  // of the last call that was armed
  struct Prepared {
    std::unique_ptr<PreparedCollective> collective;
    bool given = false;  // by the user
  };
  // By schedule, which it keeps alive.
  std::map<const schedule::Checked*, Prepared> collectives_;
};

}  // namespace ropewalk::comm
