// How long a candidate takes, and in which form it takes least: one interface for links in host
// memory (host_pricing.h) and between GPUs (device_pricing.h).
#pragma once

#include <cstddef>

#include "tune/candidates.h"
#include "tune/choice.h"

namespace ropewalk::tune {

/// Pure: the result depends only on the arguments and the facts of the constructor, which are equal
/// on all ranks.
class Pricing {
 public:
  Pricing() = default;
  virtual ~Pricing() = default;
  Pricing(const Pricing&) = delete;
  Pricing& operator=(const Pricing&) = delete;

  /// The candidate in the form that is fastest for units of `unit_bytes`: all of a Choice but its
  /// index and schedule. Its `channels` are those of the schedule that runs: the candidate's own,
  /// or a multiple of them. `predicted_seconds` is infinite where it cannot run.
  [[nodiscard]] virtual Choice price(const Candidate& candidate, std::size_t unit_bytes) const = 0;
  /// All sizes of a power of two share the choice for its middle, since pricing takes long.
  [[nodiscard]] virtual bool shared_by_sizes() const noexcept = 0;
  /// Seconds that price() does not fall short of, at once; 0 where that is not known.
  [[nodiscard]] virtual double least(const Candidate& candidate, std::size_t unit_bytes) const = 0;
  /// For a message of this number of bytes between two ranks.
  [[nodiscard]] virtual Choice message(std::size_t bytes) const = 0;
};

}  // namespace ropewalk::tune
