// An order of ranks for rings and chains that leaves hosts as seldom as possible, and avoids
// slow pairs: GPUs of a host without access to each other's memory, which are linked through the
// host's.
#pragma once

#include <span>
#include <utility>
#include <vector>

namespace ropewalk::tune {

/// Ranks of one host follow each other, hosts as their first ranks are numbered; within a host as
/// few neighbours as possible are one of `slow_pairs`. Pure, so all ranks find the same.
///
/// Searches all orders of up to about nine ranks of a host, and as many of more (depth first, with
/// the least found so far as bound: a Hamiltonian path is not to be had faster in general). A host
/// alone has a ring, one of several a path.
///
/// @param slow_pairs   the lower rank first
/// @param host_of_rank empty: one host
/// @return empty where the ranks' own order is as good
std::vector<int> ring_avoiding(std::span<const std::pair<int, int>> slow_pairs, int num_ranks,
                               std::span<const int> host_of_rank);

/// Neighbours in `order`, around, that are of different hosts; `order` empty: the ranks' own.
/// @param host_of_rank empty: one host
int host_changes(std::span<const int> host_of_rank, std::span<const int> order);

/// Neighbours in `order`, around, that are a slow pair; `order` empty: the ranks' own.
int slow_neighbours(std::span<const std::pair<int, int>> slow_pairs, int num_ranks,
                    std::span<const int> order);

}  // namespace ropewalk::tune
