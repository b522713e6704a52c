#include "plan/chunk_model.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ropewalk::plan {
namespace {

void require(bool holds, const char* what) {
  if (!holds) throw Error(Errc::kInvalidArgument, "chunk model: {}", what);
}

void require_sound(int hops, double bytes, const HopCost& hop) {
  require(hops >= 1, "at least one hop is needed");
  require(std::isfinite(bytes) && bytes > 0, "bytes must be positive");
  require(std::isfinite(hop.alpha_s) && hop.alpha_s >= 0, "alpha must not be negative");
  require(std::isfinite(hop.beta_bytes_per_s) && hop.beta_bytes_per_s > 0, "beta must be positive");
  require(std::isfinite(hop.gamma_s_per_byte) && hop.gamma_s_per_byte >= 0,
          "gamma must not be negative");
}

}  // namespace

double HopCost::seconds_per_byte() const {
  const double copying = 1 / beta_bytes_per_s;
  return overlaps ? std::max(copying, gamma_s_per_byte) : copying + gamma_s_per_byte;
}

double pipeline_seconds(int hops, double bytes, double chunk_bytes, const HopCost& hop) {
  require_sound(hops, bytes, hop);
  require(std::isfinite(chunk_bytes) && chunk_bytes > 0, "a chunk must be positive");
  const double each = hop.alpha_s + chunk_bytes * hop.seconds_per_byte();
  return pipelined_seconds(hops * each, bytes / chunk_bytes, each);
}

ChunkChoice best_chunk(int hops, double bytes, const HopCost& hop, double least_chunk) {
  require_sound(hops, bytes, hop);
  double chunk = bytes;
  if (hops > 1) {
    chunk = std::sqrt(bytes * hop.alpha_s / hop.seconds_per_byte() / (hops - 1));
  }
  chunk = std::min(std::max(chunk, least_chunk), bytes);
  return {chunk, pipeline_seconds(hops, bytes, chunk, hop)};
}

}  // namespace ropewalk::plan
