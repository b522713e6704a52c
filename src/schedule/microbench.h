// Micro-benchmarks as schedules: the small patterns that a packing of trees takes for granted.
//
// A planner that packs trees assumes that the links of a rank are independent, that forwarding
// costs no bandwidth, and that both directions of a link work at once. Each pattern here tests one
// of these on its own (Wang et al., "Blink", MLSys 2020, appendix: chain, fan-in, fan-out,
// multiple-input multiple-output, multi-chain aggregation). Every pattern is an ordinary collective
// along an unusual tree, so the checker proves it and the executors run and verify it:
//
//   test              what flows                                as a collective
//   forward           data is handed on unchanged               broadcast, gather or sendrecv
//   reduce-forward    each rank adds its own and hands on       reduce
//   reduce-broadcast  sums go in, results go out at once        all_reduce
//
//   pattern      ranks                  shape
//   chain        length                 0 -> 1 -> ... -> length-1
//   fan-in       width + 2              sources 0..width-1 -> centre -> sink
//   fan-out      width + 2              source 0 -> centre 1 -> sinks
//   mimo         width + 1              width leaves around a centre (the last rank), every leaf
//                                       with one stream into the centre and one out of it
//   multi-chain  1 + width * length     width chains of `length` ranks that meet at rank 0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

struct MicroRequest {
  std::string_view pattern;  ///< "chain", "fan-in", "fan-out", "mimo", "multi-chain"
  std::string_view test;     ///< "forward", "reduce-forward", "reduce-broadcast"
  int width = 1;             ///< sources, sinks, leaves or chains; 1 for a chain
  int length = 2;            ///< ranks of a chain; used by chain and multi-chain only
};

/// The tests that a pattern has, in the order of the table above; empty for an unknown pattern.
/// fan-out has no reduce-forward (that is fan-in), mimo neither (its sums would have one exit).
std::vector<std::string_view> micro_tests(std::string_view pattern);

/// The schedule, labelled "pattern.test", with one channel. On every link one stream of the size of
/// the call's unit flows, except from a fan-in's centre to its sink under `forward`, which carries
/// that of every source and the centre's own.
///
/// @throws Error kInvalidArgument for unknown names, a test that the pattern has not, a width below
///         1, a chain of fewer than 2 ranks, or more ranks than a schedule may have
Schedule compile_micro(const MicroRequest& request);

}  // namespace ropewalk::schedule
