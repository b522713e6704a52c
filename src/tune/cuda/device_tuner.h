// Which algorithm, protocol, number of blocks and chunk a call on GPU memory runs with.
//
// A cost model in the manner of cost_model.h: a launch, a latency for every hop, and then whatever
// takes longer: the bytes that the busiest rank sends or receives, at the rate of its link, or all
// that it reads and writes, at the rate of its blocks. All ranks know the same facts, so they
// choose alike.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "core/settings.h"
#include "core/types.h"
#include "executor/block/links.h"
#include "schedule/checked.h"
#include "tune/device_constants.h"

namespace ropewalk::tune {

/// What a choice has for the algorithm's name where the user gave the schedule.
inline constexpr const char* kGivenSchedule = "(given)";

struct DeviceChoice {
  std::string algorithm;
  executor::Protocol protocol = executor::Protocol::kSimple;
  int channels = 1;
  int threads = 512;
  std::size_t chunk_bytes = 0;
  double predicted_seconds = 0;
};

/// Threads: one at a time.
class DeviceTuner {
 public:
  struct Limits {
    int channels = 32;          ///< of a collective
    int message_channels = 16;  ///< of a message to one peer
    bool whole_lines = false;   ///< ll128 works between all ranks
    std::size_t slot_bytes[executor::kNumProtocols] = {0, 0};
  };
  DeviceTuner(const Config& config, int num_ranks, const Limits& limits,
              const DeviceConstants& constants, schedule::CheckedSchedules& schedules);

  /// For units of `unit_bytes`. @throws Error kInvalidArgument when a setting forces what cannot be
  DeviceChoice choose(Collective collective, int root, std::size_t unit_bytes);
  /// For a schedule that the user gave: channels in a multiple of its own.
  [[nodiscard]] DeviceChoice choose_given(const schedule::Checked& given,
                                          std::size_t unit_bytes) const;
  /// For a message between two ranks.
  [[nodiscard]] DeviceChoice choose_message(std::size_t bytes) const;

 private:
  // What a schedule asks of its busiest rank, per unit.
  struct Load {
    int hops = 0;
    int parts = 1;
    int chunks = 1;    // of the busiest link, in a round
    double units = 0;  // sent or received, whichever is more
    double work = 0;   // units read and written
  };
  [[nodiscard]] Load load_of(const schedule::Checked& checked) const;
  const Load& load_of(const std::string& algorithm, Collective collective, int root);
  /// How many channels there may be, and what their number is a multiple of.
  struct Channels {
    int most = 1;
    int multiple = 1;
  };
  [[nodiscard]] DeviceChoice shape(const std::string& algorithm, const Load& load,
                                   executor::Protocol protocol, std::size_t unit_bytes,
                                   Channels channels) const;
  [[nodiscard]] DeviceChoice best_protocol(const std::string& algorithm, const Load& load,
                                           std::size_t unit_bytes, Channels channels) const;

  int num_ranks_;
  Limits limits_;
  DeviceConstants constants_;
  schedule::CheckedSchedules& schedules_;
  std::map<Collective, std::string> forced_;
  std::vector<executor::Protocol> protocols_;  // that may be chosen
  int forced_channels_ = 0;
  int forced_threads_ = 0;
  std::map<std::tuple<std::string, Collective, int>, Load> loads_;
};

}  // namespace ropewalk::tune
