// How the kernels that are compiled once per vector target are found. Internal to kernels*.cc and
// their tests.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/host/kernels.h"

// Highway's targets that are worth their compile time: on x86 its baseline, SSE4, AVX2 and AVX3. To
// be included before <hwy/highway.h>, in every file.
#define HWY_DISABLED_TARGETS HWY_SSSE3

namespace ropewalk::executor::detail {

/// Needs at least one destination and a count above 0; anything else that combine() takes.
using CombineKernel = void (*)(const CombineArgs& args);
using CombineTable = std::array<std::array<CombineKernel, kNumRedOps>, kNumDataTypes>;

/// Copies to one or more destinations, none equal to the source; to the first `streamed` of them
/// past the caches.
using CopyKernel = void (*)(void* const* destinations, std::size_t num_destinations,
                            std::size_t streamed, const void* source, std::size_t bytes);

// Each fills in its types for the target that Highway has chosen.
void add_integer_kernels(CombineTable& table);
void add_wide_integer_kernels(CombineTable& table);
void add_float_kernels(CombineTable& table);
void add_small_float_kernels(CombineTable& table);
CopyKernel copy_kernel();
const char* target_name();

// For tests, while no other thread is in combine() or copy():
/// The targets that were compiled and that this CPU can run, best first.
std::vector<std::int64_t> usable_targets();
/// Uses one of them; 0 goes back to the best.
void use_target(std::int64_t target);
void select_kernels_again();

}  // namespace ropewalk::executor::detail
