// How large chunks should be, and how long a pipelined chain or tree then takes.
//
// A message of M bytes goes down p hops in chunks of c: T(c) = (p - 1 + M/c) (alpha + c/beta), and
// least at c = sqrt(M alpha beta / (p - 1)): S. L. Johnsson and C.-T. Ho, "Optimum broadcasting and
// personalized communication in hypercubes", IEEE Trans. Computers 38 (1989). A hop that combines
// costs c/beta + gamma c when copying and adding do not overlap, the larger of both when they do.
#pragma once

namespace ropewalk::plan {

/// One hop.
struct HopCost {
  double alpha_s = 0;           ///< seconds per chunk
  double beta_bytes_per_s = 0;  ///< rate of the link, or of the share of it that a child has
  double gamma_s_per_byte = 0;  ///< combining; 0 where nothing is combined
  bool overlaps = true;         ///< combining runs beside copying

  /// Seconds that a byte takes on a hop.
  [[nodiscard]] double seconds_per_byte() const;
};

struct ChunkChoice {
  double chunk_bytes = 0;
  double seconds = 0;
};

/// What every pipelined operation takes: the first chunk's full latency, then one period for each
/// chunk that follows. The runtime's tuner (tune/cost_model.h, tune/device_pricing.h) predicts
/// by it as well, with measured costs of the busiest rank for a period.
inline double pipelined_seconds(double first, double chunks, double period) {
  return first + (chunks - 1) * period;
}

/// (p - 1 + M/c) (alpha + c/beta), M/c not rounded.
/// @throws Error kInvalidArgument unless hops >= 1, bytes and chunk are positive and finite, alpha
///         and gamma not negative, and beta positive
double pipeline_seconds(int hops, double bytes, double chunk_bytes, const HopCost& hop);

/// The best chunk of a chain of `hops` hops, or of a tree of that depth: reduce then broadcast in
/// one stream is twice the depth. One hop, or no alpha at all, has no best chunk inside: one hop
/// takes the message whole; without alpha the chunk is `least_chunk`. The chunk is at least
/// `least_chunk` (copies below some size are inefficient) and at most the message.
ChunkChoice best_chunk(int hops, double bytes, const HopCost& hop, double least_chunk = 4096);

}  // namespace ropewalk::plan
