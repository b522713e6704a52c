// How long a checked schedule should take on a machine of physical links.
//
// The bytes of every message are counted along the links of its route. In the manner of LogGP
// (cost_model.h), with the links of the machine instead of one rate for all:
//
//   T(R rounds) = F + (R - 1) * max(P, B), and at most R times as long as one round alone
//
// A round moves one chunk of each channel, all channels have the same number of chunks, with sizes
// by weight. B is the time of the busiest link: the bytes that a round puts on it, over its
// capacity. F is how long one round takes, and P the time between the ends of two rounds on
// average. F and P come from walks of one round, and of some after each other, message by message
// (where steps lag, of so many that all of them run, and P from the later half; F then has what
// filling and draining take):
//
// - a message may start when its step's operands are there, the step before it is done, and the
//   FIFO that it goes through has a free slot and is not busy with another one;
// - it moves after the latencies of its links, as fast as the scarcest of them lets it: each link
// is
//   shared alike by the messages that are on it;
// - a message costs each of its ends `message_seconds`, one after another for all of a rank's.
//
// Where nothing shares a link, F = (hops of the longest path) * (latency + chunk / capacity of the
// slowest link) and P = B or, in a schedule whose steps wait for each other, F. That formula is
// used where a walk would take too long (MachineCostOptions::most_walked).
//
// How good it is: machine_cost_test.cc has the range of its ratio to the simulator
// (schedule/simulate.h), which shares links fairly and has code of its own.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "schedule/checked.h"
#include "schedule/from_plan.h"
#include "topology/topology.h"

namespace ropewalk::tune {

/// What moves the messages, beside the links.
struct MachineCostOptions {
  double message_seconds = 0;  ///< of each end, per message
  int slots = 8;               ///< chunks that a FIFO holds
  bool lags = false;           ///< steps run in the order of schedule/lags.h
  /// A FIFO's next chunk is sent before the last one has arrived, as the executors do; else one at
  /// a time, as in the simulator.
  bool overlaps = true;
  /// A round of more messages has the formula instead.
  std::size_t most_walked = 40'000;
};

/// A link with its part in a schedule.
struct LinkShare {
  int link = 0;      ///< index into Topology::links
  double share = 0;  ///< bytes that pass it for each byte of the message, as algbw counts it
};

/// schedule::default_route() of all pairs of a machine, each found when first asked for.
///
/// Threads: one at a time. The machine outlives it.
class DefaultRoutes {
 public:
  explicit DefaultRoutes(const topology::Topology& machine) : machine_(machine) {}
  const std::vector<int>& find(int source, int destination);
  [[nodiscard]] const topology::Topology& machine() const noexcept { return machine_; }

 private:
  const topology::Topology& machine_;
  std::map<std::pair<int, int>, std::vector<int>> routes_;
};

/// Threads: one at a time.
class MachineCost {
 public:
  /// @param given  routes of messages; where there is none, `routes` says
  /// @throws Error kInvalidArgument if there is no path between two ranks that communicate
  MachineCost(DefaultRoutes& routes, const schedule::Schedule& schedule, int longest_path,
              const schedule::Routes& given, const MachineCostOptions& options);

  /// Seconds for units (schedule/layout.h) of `unit_bytes`, in chunks of at most `chunk_bytes`.
  [[nodiscard]] double predict(double unit_bytes, double chunk_bytes);

  /// What rounds of one size take, seconds.
  struct Rounds {
    double alone = 0;   ///< one round without others
    double first = 0;   ///< the first of many, extrapolated from later ones
    double period = 0;  ///< between the ends of two rounds
  };
  /// Of rounds that move so many bytes of a unit each.
  [[nodiscard]] Rounds rounds_of(double unit_bytes) const;

  /// Seconds that predict() does not fall short of, at once.
  [[nodiscard]] double least(double unit_bytes) const;

  /// Seconds that each byte of a unit takes on the busiest link, in the limit of long messages.
  [[nodiscard]] double seconds_per_byte() const noexcept { return busiest_; }
  /// GB/s in the limit of long messages, as nccl-tests counts them; infinite without messages.
  [[nodiscard]] double algbw() const noexcept { return algbw_; }
  /// Every link that is used, by index.
  [[nodiscard]] const std::vector<LinkShare>& links() const noexcept { return links_; }
  /// Those that limit algbw(): the busiest, within a millionth.
  [[nodiscard]] std::vector<LinkShare> limiting_links() const;

 private:
  struct Path {
    std::vector<int> links;  // indices in capacity_
    double latency = 0;
    double slowest = 0;  // bytes per second
  };
  struct Send {
    int pipe = 0;
    int path = 0;
  };
  struct Step {
    int first_receive = 0, last_receive = 0;  // into receives_
    int first_send = 0, last_send = 0;        // into sends_
    int lag = 0;                              // rounds
  };
  struct Strand {
    int rank = 0;
    double block = 0;  // of a unit's bytes
    int first_step = 0, last_step = 0;
    int last_lag = 0;
  };
  struct Pipe {
    int sender = -1;  // strands
    int receiver = -1;
  };
  [[nodiscard]] const Rounds& walked(int exponent);
  [[nodiscard]] std::vector<double> walk(double unit_bytes, int rounds) const;
  [[nodiscard]] Rounds in_closed_form(double unit_bytes) const;

  MachineCostOptions options_;
  std::vector<double> capacity_;  // bytes per second, of the links that are used
  std::vector<Path> paths_;
  std::vector<Pipe> pipes_;
  std::vector<Strand> strands_;
  int busiest_strands_ = 0;  // of one rank
  std::vector<Step> steps_;
  std::vector<int> receives_;
  std::vector<Send> sends_;
  int num_ranks_ = 0;
  int longest_path_ = 0;
  double least_latency_ = 1e9;  // of a path
  double largest_block_ = 0;    // of a unit's bytes
  double busiest_ = 0;          // seconds per byte of a unit
  double algbw_ = 0;
  std::vector<LinkShare> links_;
  std::map<int, Rounds> walked_;
};

}  // namespace ropewalk::tune
