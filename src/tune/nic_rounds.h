// What the NICs between hosts take for a schedule's rounds of chunks.
//
// A schedule's messages are walked one by one (machine_cost.h) over a machine on which nothing
// takes time but what leaves a host: over the NIC that its channel is on, out of the sender's host
// and into the receiver's, each direction by itself, shared alike by the messages that are on it.
// So it is seen which NICs idle while ranks wait for each other: while a tree is filled and
// drained, where steps stand in an order, and where one direction has nothing to carry.
//
// Times are in proportion to the sizes of chunks, so that one walk serves all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "schedule/checked.h"

namespace ropewalk::tune {

/// Seconds for each byte of a unit (schedule/layout.h) that a round moves, over all its parts and
/// channels.
struct NicRounds {
  double alone = 0;   ///< one round without others
  double first = 0;   ///< the first of many: what filling and draining take is in it
  double period = 0;  ///< between the ends of two rounds of many
  int links = 0;      ///< that share a NIC in one direction, where most do
  /// Seconds for `rounds` rounds of so many bytes of a unit each.
  [[nodiscard]] double seconds(double rounds, double bytes) const;
};

/// The hosts of a group, with nothing that takes time but their NICs.
///
/// Threads: immutable.
class NicHosts {
 public:
  /// @param host_of_rank  hosts from 0 on
  /// @param rates  bytes/s of each rail (link/rails.h), of every host; at least one, all positive
  NicHosts(std::span<const int> host_of_rank, std::span<const double> rates);
  ~NicHosts();
  NicHosts(NicHosts&&) noexcept;
  NicHosts& operator=(NicHosts&&) = delete;
  NicHosts(const NicHosts&) = delete;
  NicHosts& operator=(const NicHosts&) = delete;

  /// Channel c is on rail c % rates.size(). Takes some milliseconds at most: schedules of many
  /// messages are not walked.
  /// @param hops       between hosts, on the chain of messages that has most (of ScheduleShape:
  /// longest_path less local_path)
  /// @param lag_slots  GroupFacts::lag_slots
  [[nodiscard]] NicRounds rounds_of(const schedule::Checked& checked, int hops,
                                    std::uint32_t lag_slots) const;
  /// Of a host's NICs together, bytes/s.
  [[nodiscard]] double rate() const noexcept { return rate_; }

 private:
  struct Machine;
  std::unique_ptr<const Machine> machine_;
  double rate_;
};

/// NicHosts::rounds_of() of one schedule, when first asked for.
///
/// Threads: one at a time.
class NicCost {
 public:
  /// @param leaving_units  ScheduleShape's
  NicCost(std::shared_ptr<const NicHosts> hosts, std::shared_ptr<const schedule::Checked> checked,
          double leaving_units, int hops, std::uint32_t lag_slots);
  const NicRounds& rounds();
  /// What rounds() does not fall short of, at once.
  [[nodiscard]] NicRounds least() const;

 private:
  std::shared_ptr<const NicHosts> hosts_;
  std::shared_ptr<const schedule::Checked> checked_;
  double leaving_units_;
  int hops_;
  std::uint32_t lag_slots_;
  std::optional<NicRounds> rounds_;
};

}  // namespace ropewalk::tune
