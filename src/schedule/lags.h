// Software pipelining of a rank's steps over the rounds of a call, so that links are not idle while
// ranks wait for chunks.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// The most rounds by which a step may lag; also the number of turns to fill and drain the
/// pipeline.
inline constexpr int kMostLag = 4096;

/// Rounds by which each step of one channel may lag behind the first ones: [rank][step]. In turn t
/// a rank runs, in the order of its list, each step on round t - lag, where there is such a round;
/// there are as many turns as rounds plus the largest lag. All zero: round by round.
///
/// A step that takes a chunk lags by one round more than the step that sent it. So no step waits
/// for what is sent in the same turn, and what a rank sends does not wait until it has what it
/// receives. (Modulo scheduling, as compilers pipeline loops; M. Lam, "Software pipelining", PLDI
/// 1988.)
///
/// Correctness:
/// - Each link carries its chunks in one order: the receiver of every chunk is one turn behind its
///   sender, and within a turn both follow their lists.
/// - No deadlock: in turn t a rank takes what was sent in turn t - 1, and has room to
///   send when its readers are through turn t - 1, if a link holds the chunks of two turns. Where
///   it holds fewer, steps wait for steps of the same turn; none waits for itself if these
///   relations have no circle. (Turns without some of the steps, at both ends of a call and in
///   short parts, have fewer chunks: what must have been taken then lies further back.) A ring
///   all-reduce, with 2 (n - 1) chunks in a turn, needs a link that holds two more than these.
/// - The steps of one block and round keep their order on every rank, as a step lags no less than
///   those of its block before it. Steps of different blocks, or rounds, may be reordered: they
///   share no memory, in place or out of place (symbolic_run.h). So each step reads what it read
///   round by round, and the result is the one that the checker verified.
/// - Direct sends stay correct: that a buffer has been read before it is written again
///   follows from chains of steps and chunks of one block and round alone (direct_send.h), and
///   these keep their order.
///
/// All lags are zero if one of these fails with `slots` chunks per link, or a step would lag by
/// more than kMostLag.
std::vector<std::vector<std::uint32_t>> find_lags(const Schedule& schedule, int channel,
                                                  std::uint32_t slots);

}  // namespace ropewalk::schedule
