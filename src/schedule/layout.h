// Where the data of a block lies: the definition of each collective.
//
// The *units* of a collective are what its definition names: the whole vector (all_reduce,
// broadcast, reduce), one per rank (all_gather, reduce_scatter, gather, scatter, sendrecv), one per
// pair (all_to_all: unit = source * ranks + destination). Every unit has `count` elements. A
// schedule cuts each unit into `parts`; block = unit * parts + part.
//
// `count` means what it means in NCCL's calls: elements per rank contribution (sendcount of
// all_gather and gather, recvcount of reduce_scatter and scatter, elements per pair of all_to_all).
#pragma once

#include <cstddef>
#include <optional>

#include "core/types.h"

namespace ropewalk::schedule {

/// Number of units: 1, ranks, or ranks squared.
int num_units(Collective collective, int num_ranks) noexcept;

/// Index of the unit within a rank's input or output buffer, in multiples of `count` elements;
/// nothing when that rank has no such input (output). The input of a rank is what it contributes.
std::optional<int> input_index(Collective collective, int num_ranks, int root, int unit,
                               int rank) noexcept;
std::optional<int> output_index(Collective collective, int num_ranks, int root, int unit,
                                int rank) noexcept;

/// The rank whose contribution a unit is, for collectives that move without reducing; nothing for
/// those that reduce (every rank contributes to every unit).
std::optional<int> contributor(Collective collective, int num_ranks, int root, int unit) noexcept;

/// Number of `count`-sized units in a rank's input and output buffer.
int input_units(Collective collective, int num_ranks, int root, int rank) noexcept;
int output_units(Collective collective, int num_ranks, int root, int rank) noexcept;

/// For in-place calls: the unit index within the *output* buffer at which the input buffer starts
/// when the caller passes overlapping buffers as NCCL defines it (all_gather and gather: the own
/// rank's block of the output; reduce_scatter and scatter: the output is the own rank's block of
/// the input, given as a negative index). Nothing when the collective has no in-place form.
std::optional<int> in_place_input_offset(Collective collective, int rank) noexcept;

struct Range {
  std::size_t begin = 0;
  std::size_t count = 0;
};

/// The elements of a unit that channel `channel` carries: consecutive, covering `count`, shares by
/// weight, boundaries at multiples of `granule` elements.
Range channel_range(std::size_t count, const int* weight, int num_channels, int channel,
                    std::size_t granule) noexcept;

/// The elements of a channel's range that part `part` of `parts` holds; boundaries as above. The
/// last parts are empty when there are few elements.
Range part_range(Range channel, int parts, int part, std::size_t granule) noexcept;

}  // namespace ropewalk::schedule
