// In which order a rank's steps may run over the rounds of a call, so that links do not stand idle
// while chunks are waited for.
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Rounds by which a step lags at most: such a list is filled and drained for as many turns.
inline constexpr int kMostLag = 4096;

/// Rounds by which each step of one channel may lag behind the first ones: [rank][step]. In turn t
/// a rank runs, in the order of its list, each step on round t - lag, where there is such a round;
/// turns are as many as rounds and the largest lag. All zero is the plain order, round by round.
///
/// A step that takes a chunk lags by one round more than the step that sent it. So no step waits
/// for what is sent in the same turn, and what a rank sends does not wait until it has what it
/// receives. (Modulo scheduling, as compilers pipeline loops; M. Lam, "Software pipelining", PLDI
/// 1988.)
///
/// What makes this right:
/// - Each link carries its chunks in one order: sender and receiver of a chunk are one turn apart,
///   for every chunk alike, and within a turn both follow their lists.
/// - Nothing waits for ever: in turn t a rank takes what was sent in turn t - 1, and has room to
///   send when its readers are through turn t - 1, if a link holds the chunks of two turns.
/// - The steps of one block and round keep their order on every rank, as a step lags no less than
///   those of its block before it. Steps of different blocks, or rounds, may change places: they
///   share no memory, neither in place nor not (symbolic_run.h). So each step reads what it read
///   round by round, and the result is the one that the checker has seen.
/// - What goes by address stays right: that a buffer has been read before it is written again
///   follows from chains of steps and chunks of one block and round alone (direct_send.h), and
///   these keep their order.
///
/// Where one of these cannot be had, within `slots` chunks on a link, or a step would lag by more
/// than kMostLag, all lags are zero.
std::vector<std::vector<std::uint32_t>> find_lags(const Schedule& schedule, int channel,
                                                  std::uint32_t slots);

}  // namespace ropewalk::schedule
