// How long a checked schedule should take on this machine.
//
// In the manner of LogGP (Alexandrov, Ionescu, Schauser, Scheiman, SPAA 1995): a chunk of b bytes
// costs its sender and its receiver o + b / rate each, and arrives a latency later. With r rounds
// of chunks, the busiest rank's work W per round, and a longest chain of h dependent messages:
//
//   T = max(h * (latency + cost of one chunk at both ends), W) + (r - 1) * W
//
// By address, the receiver alone copies: from memory into its output, or into a cache and from
// there, combined, into its output. Those that copy from one rank at the same time together have
// twice the rate of one: the system counts the users of each page that it copies from. (Sixteen
// cores of a Xeon, 0.5 to 2 MiB: one rank 5.6 GB/s, three together 10 to 11.4, seven 12 to 14.) So
// W is no less than what the ranks that read from the busiest one take for that. Where a reader
// sends nothing, and chunks are long enough, the writer copies from the other end
// (executor/host/shared_copy.h): 1.7 times the rate, while the work of all stays what it is.
//
// Through slots, the rate is that of data which a rank copies from memory into a slot. What it
// sends again in a round, or passes on, is in its caches: half of the time. What it receives lies
// in the caches of another core: three quarters. (There, of 512 KiB: the first copy into a slot 99
// us, each further one 32 to 42, one out of a slot some 60.) What a step sends to several ranks is
// copied into one slot for all of them, unless it is short (executor/host/slot_readers.h).
//
// Among ranks with a core each, a short chunk of an operation with a root costs its sender no less
// than a hop's latency: the line that it writes is in the cache of who read it last, and stores
// wait for each other, where reads do not. (Sixteen cores of a Xeon, broadcasts of 8 bytes back to
// back: direct, 3 messages of the root 0.38 us, 7 messages 0.79; by a tree, 2 messages of each rank
// at most, 0.29 and 0.31.)
//
// Where ranks outnumber cores, work is multiplied by ranks per core, and a hop also costs a switch
// of threads. Where such ranks are linked by sockets, which takes the system microseconds of a core
// for each message, a wait for one rank is time for another, and what counts is the work of all:
//
//   T = S / cores + W + h * cost of a message + (r - 1) * max(S / cores, W)
//
// with S the sum of all ranks' work per round, and W that of the busiest. Measured among 4 ranks on
// 2 cores, all-reduces of 512 bytes by ten schedules of 6 to 24 messages took 2.5 us a message,
// whatever their hops.
//
// A rank with a core of its own waits for its longest chain of messages, whose cost to it is in the
// hops; what it does beside that comes in addition, for the first round. Short messages that follow
// each other at once may leave together, and cost as much as one.
//
// Where the hosts of ranks are known, messages within a host cost o + b / rate of links in its
// memory, and those hops of the longest chain that no chain has between hosts take these links'
// latency.
//
// Where the rate of a host's NICs was measured, a call takes no less than its messages take over
// them (nic_rounds.h), and the latency of its longest chain of messages in addition. Where k links
// share a NIC, that is 1 + (k - 1) * cost times as long, with the cost that long transfers have;
// those of few bytes a link have less of it, b / (b + 256 KiB).
#pragma once

#include <cstddef>
#include <span>
#include <utility>
#include <vector>

#include "schedule/checked.h"
#include "tune/nic_rounds.h"

namespace ropewalk::tune {

/// Measured on each machine (machine_constants.h). Seconds, bytes per second. Plain bytes: rank 0's
/// are sent to all ranks, so that all choose identically.
struct MachineConstants {
  double hop_latency = 1.2e-7;      ///< one way: a line written here is seen by another core
  double chunk_cost = 5e-8;         ///< processor time per chunk at either end
  double copy_rate = 16e9;          ///< one core, in or out of a FIFO's slots
  double combine_rate = 16e9;       ///< one core, slot and input into output
  double address_cost = 6e-7;       ///< per chunk that is copied from another process's memory
  double address_rate = 18e9;       ///< of such a copy, from memory into a cache
  double address_move_rate = 18e9;  ///< the same, into memory
  double switch_cost = 3e-6;        ///< from one thread to another on a core
  double network_latency = 2.5e-5;
  double network_rate = 2e9;
  double network_message = 2.5e-6;  ///< processor time of a short message at both its ends together
};

/// The group, as far as it decides costs.
struct CostContext {
  MachineConstants machine;
  double ranks_per_core = 1;
  bool network = false;            ///< some ranks are on other hosts
  std::size_t joined_bytes = 0;    ///< DeviceProperties::joined_bytes, of the network
  bool same_process = false;       ///< all ranks are threads of one: addresses cost no system call
  std::size_t short_bytes = 1024;  ///< GroupFacts::short_bytes
  double share_bytes = 0;          ///< smallest chunk that both ends copy; 0: none
  /// What the NICs take for the schedule's rounds; zero: not known, taken as no limit.
  NicRounds nics{};
  double nic_sharing_cost = 0;  ///< GroupFacts::nic_sharing_cost
};

/// The work of a rank in one round of a schedule, in messages and copies of a part each.
struct RankLoad {
  int messages_out = 0;
  int combined_in = 0;  ///< received and combined
  int copied_in = 0;    ///< received and only copied or passed on
  int copies = 0;       ///< moved without any link
  int out_again = 0;    ///< sent, of data that the rank has received or sent before in the round
  int out_common = 0;   ///< of these, sent by a step that sends them to another rank, too
  /// Of these, within the host, where hosts are known.
  int local_out = 0;
  int local_combined_in = 0;
  int local_copied_in = 0;
  /// Messages between hosts that follow another one over the same link, before their sender has
  /// waited for any rank: they can travel together. Only where hosts are known.
  int joined_out = 0;
  int joined_in = 0;
  friend auto operator<=>(const RankLoad&, const RankLoad&) = default;
};

/// The work of a schedule's ranks; computed once per schedule.
struct ScheduleShape {
  int longest_path = 0;
  /// Hops of the longest path less the most between hosts that any path has; 0: hosts not known.
  int local_path = 0;
  int parts = 1;
  int channels = 1;
  bool by_address = false;      ///< every message can be sent by address, in place or not
  std::vector<RankLoad> loads;  ///< the distinct ones
  int ranks = 1;
  RankLoad all;                   ///< of all ranks together
  double leaving_units = 0;       ///< data that leaves a host, of the one that most leaves
  double leaving_link_units = 0;  ///< of that, over the link between two ranks that has most
  /// Sent to other hosts and received from them, by the rank that has most of both together.
  double leaving_rank_units = 0;
  /// The share of the channel that carries most, times their number: more than 1 where channels
  /// have weights, and that is not to be left out.
  double heaviest = 1;
  bool rooted = false;    ///< data goes to the root, or comes from it
  int fan = 0;            ///< ranks that one rank sends to, or receives from, on one channel
  int steps = 0;          ///< of one rank on one channel, of which that has most
  int link_messages = 1;  ///< in a round, on the link that has most
  double link_units = 0;  ///< sent or received by the busiest rank, whichever is more
  double work_units = 0;  ///< read and written by the busiest rank
  /// Sent or received by one rank over links through the host's memory; see units_over().
  double host_path_units = 0;
  /// @param host_of_rank by rank; empty: not known, or one host
  static ScheduleShape of(const schedule::Checked& checked, std::span<const int> host_of_rank = {});
};

/// Units that one rank sends, or receives, over links of these pairs: whichever rank and direction
/// has most. Pairs have the lower rank first.
double units_over(const schedule::Schedule& schedule, std::span<const std::pair<int, int>> pairs);

/// Seconds for units of `unit_bytes`, cut into chunks of at most `chunk_bytes`, given by address or
/// staged. With a core for each rank, operations with a root, over a network or of short chunks:
/// the mean of a call alone and of one among others, which overlap.
double predict(const ScheduleShape& shape, const CostContext& context, std::size_t unit_bytes,
               std::size_t chunk_bytes, bool by_address);

}  // namespace ropewalk::tune
