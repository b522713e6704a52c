// How fast the GPUs of this host reach each other's memory and the host's.
#pragma once

#include <cstddef>
#include <string>

namespace ropewalk::diagnose {

/// Bandwidth and latency between all pairs of GPUs, and between each GPU and the host, as JSON:
/// bytes, repetitions, gpus[], peer_access[][], matrices[], host[]. A matrix has what, direction,
/// by, peer_access, unit and values[][]: row i, column j is from GPU i to GPU j (of a latency by
/// kernel: GPU i loads from GPU j); null where that cannot be. A row of `host` has what, direction,
/// by, unit and values[], one for each GPU.
///
/// Measures the same values as the CUDA samples' p2pBandwidthLatencyTest, by the same method:
/// work is enqueued behind a kernel that holds the stream, so that launching is not timed.
///
/// Switches peer access of all pairs on and off: call it where no communicator has GPUs.
/// @throws Error kInvalidUsage without GPUs, kInvalidArgument, kCuda
std::string measure_peers(std::size_t bytes, int repetitions);

}  // namespace ropewalk::diagnose
