// The text form of a schedule: small, diffable, kept as golden files.
//
//   ropewalk-schedule 1
//   collective all_reduce
//   algorithm ring
//   ranks 2
//   parts 2
//   channel 0 weight 1
//   rank 0 channel 0
//     b1: in -> 1
//     b0: 1 + in => out, 1
//     b1: 1 -> out
//   rank 1 channel 0
//     ...
//
// A step is `b<block>: operands -> destinations`. Operands are ranks (links), `in`, `out`, joined
// by ` + ` in the order in which they are combined; destinations are `out` and ranks. `=>` instead
// of
// `->` marks a finished value. `root R` stands after `ranks` for collectives with a root. '#'
// starts a comment. print() gives one canonical form: parse(print(s)) == s and print(parse(t)) == t
// for canonical t.
#pragma once

#include <string>
#include <string_view>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// @throws Error kInvalidArgument naming line and column; also for text that ends too early, and
///         for more than 65536 ranks, 1024 channels or 16 Mi steps
Schedule parse(std::string_view text);

std::string print(const Schedule& schedule);

/// One step as it stands in the text, without the indent. For messages.
std::string print(const Step& step);

}  // namespace ropewalk::schedule
