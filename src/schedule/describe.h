// JSON text of schedules and reports, for the C API.
#pragma once

#include <string>

#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// One object:
///
///   collective, algorithm: text; ranks, root, parts: numbers
///   channels: [{weight}]
///   programs: [rank][channel][step] of
///     {block, operands: ["in" | "out" | rank], write_output, finished, send: [rank]}
///   accepted: bool; defects: [text]; in_place: bool; longest_path: number
///   links: [{channel, source, destination, messages, units}]
///
/// The words mean what schedule.h and check.h say. A refused schedule is described all the same.
std::string describe(const Schedule& schedule, const CheckReport& report);

/// A list of {name, help, collectives: [text]}: the algorithms, each with the collectives that it
/// has for 2 ranks (and most other numbers of ranks; compile() has the last word).
std::string describe_algorithms();

}  // namespace ropewalk::schedule
