// Shares of channels that are spread over rails (link/rails.h) of unequal rates.
#pragma once

#include <span>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::tune {

/// The weight of each channel (schedule/schedule.h), so that all rails are done at the same time:
/// channel c goes over rail c % rates.size(), whose rate its channels share. Rates within an eighth
/// of the fastest count as equal, as measurements differ by so much; the others in sixteenths of
/// it.
/// @param rates bytes/s, the fastest first, all positive; empty: one rail
std::vector<int> channel_weights(std::span<const double> rates, int channels);

/// Whether a rate counts as equal to `fastest`: at least seven eighths of it.
bool as_fast(double rate, double fastest);

/// A schedule with each of its channels as many times as there are rails, one on each, by
/// channel_weights().
/// @param rates as there; fewer than two: the schedule itself
schedule::Schedule spread_over_rails(schedule::Schedule schedule, std::span<const double> rates);

}  // namespace ropewalk::tune
