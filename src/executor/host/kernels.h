// Element-wise kernels of the host executor: combine and copy, for every type and operator.
//
// One source (Google Highway), compiled for every vector width, chosen at run time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "core/types.h"

namespace ropewalk::executor {

/// What combine() does with `count` elements of `type`:
///
///   x_s  = source s, multiplied by `scalar` if s == scaled_source
///   y    = ((x_0 op x_1) op x_2) ... in the order of `sources`
///   z    = y / divisor if divisor > 1; integers truncate towards zero, floats round
///   every destination = z
///
/// kAvg and kPreMulSum combine as kSum: the scaling and the division are stated apart. One source
/// is a copy (or a scaling). 8- and 16-bit floats are combined in float32 and rounded once to
/// nearest-even at the end; integers wrap. Float max and min return the other operand when one is
/// NaN, and the left one of two zeros. float8e4m3 is the OCP form (no infinities, overflow to NaN
/// as in __nv_fp8 without saturation), float8e5m2 the IEEE-like one. No product is fused with a
/// sum, so the bits are equal on every CPU, but for the sign and payload of a NaN.
struct CombineArgs {
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  std::span<const void* const> sources;  ///< at least 1
  std::span<void* const> destinations;   ///< at least 1
  std::size_t count = 0;
  int scaled_source = -1;
  std::uint64_t scalar = 0;  ///< one element of `type`, in the low bytes
  std::uint32_t divisor = 1;
  /// Writes the first destination with non-temporal stores where that is possible: right for an
  /// output that no cache holds, wrong for one that some core reads soon. The others, which a peer
  /// may wait for, are written as usual. Ordered before any later store of the calling thread when
  /// combine() returns.
  bool streaming_output = false;
};

/// A destination may be exactly one of the sources; otherwise nothing overlaps. Buffers are aligned
/// to their elements. Allocates nothing and never throws. Threads: any number at once on different
/// memory.
void combine(const CombineArgs& args);

/// Copies to every destination; a destination may be exactly the source. Copies of
/// kStreamingCopyBytes and more use non-temporal stores; they are ordered before any later store of
/// the calling thread when copy() returns.
void copy(std::span<void* const> destinations, const void* source, std::size_t bytes);
/// The same, the first destination written with non-temporal stores whatever the size, and the
/// others as usual.
void copy_streaming(std::span<void* const> destinations, const void* source, std::size_t bytes);
/// From about the size of a core's second-level cache: there, on a Xeon with 2 MiB of it, 14 GB/s
/// became 20, while copies of half a MiB fell from 42 to 22.
inline constexpr std::size_t kStreamingCopyBytes = std::size_t{2} << 20;

/// The target in use, for the log: "AVX3", "AVX2", "SSE4", "NEON".
const char* vector_target();

}  // namespace ropewalk::executor
