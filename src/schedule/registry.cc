#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/error.h"
#include "schedule/algorithms.h"
#include "schedule/building.h"
#include "schedule/compile.h"
#include "schedule/limits.h"

namespace ropewalk::schedule {
namespace {

std::string names_of_supporting(const Request& request) {
  std::string names;
  for (const Algorithm& algorithm : algorithms()) {
    if (!algorithm.supports(request)) continue;
    names += names.empty() ? "" : ", ";
    names += algorithm.name;
  }
  return names.empty() ? "none" : names;
}

void require_within(std::string_view what, int value, int least, int most) {
  if (value < least || value > most) {
    throw Error(Errc::kInvalidArgument, "schedule for {} {}: must be within {} to {}", value, what,
                least, most);
  }
}

bool visits_each_once(std::vector<int> order, int num_ranks) {
  std::ranges::sort(order);
  if (order.size() != static_cast<std::size_t>(num_ranks)) return false;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (order[static_cast<std::size_t>(rank)] != rank) return false;
  }
  return true;
}

// Each number that occurs is below that of ranks, so that tables by host stay small.
bool are_hosts(const std::vector<int>& host_of_rank, int num_ranks) {
  return host_of_rank.size() == static_cast<std::size_t>(num_ranks) &&
         std::ranges::all_of(host_of_rank, [&](int host) { return host >= 0 && host < num_ranks; });
}

}  // namespace

std::span<const Algorithm> algorithms() noexcept {
  static const std::array kRegistry = {
      kRing,              //
      kChain,             //
      kBinaryTree,        //
      kDoubleBinaryTree,  //
      kRecursiveDoubling,
      kOneShot,
      kTwoShot,
      kDirect,
      kHierarchical,
  };
  return kRegistry;
}

Schedule compile(std::string_view algorithm, const Request& request) {
  require_within("ranks", request.num_ranks, 1, kMaxRanks);
  require_within("channels", request.channels, 1, kMaxChannels);
  if (request.root < 0 || request.root >= request.num_ranks) {
    throw Error(Errc::kInvalidArgument, "schedule for root {} among {} ranks", request.root,
                request.num_ranks);
  }
  if (request.root != 0 && !has_root(request.collective)) {
    throw Error(Errc::kInvalidArgument, "schedule for root {}: {} has no root", request.root,
                name(request.collective));
  }
  if (!request.order.empty() && !visits_each_once(request.order, request.num_ranks)) {
    throw Error(Errc::kInvalidArgument, "schedule in the order {}: not each of {} ranks once",
                fmt::join(request.order, " "), request.num_ranks);
  }
  if (!request.host_of_rank.empty() && !are_hosts(request.host_of_rank, request.num_ranks)) {
    throw Error(Errc::kInvalidArgument,
                "schedule for the hosts {}: must be one for each of {} ranks, numbered from 0",
                fmt::join(request.host_of_rank, " "), request.num_ranks);
  }
  for (const Algorithm& candidate : algorithms()) {
    if (candidate.name != algorithm) continue;
    if (candidate.supports(request)) {
      return request.num_ranks == 1 ? alone(algorithm, request) : candidate.compile(request);
    }
    throw Error(Errc::kInvalidArgument,
                "algorithm {} has no {} for {} ranks and {} channels{}{}; those that have: {}",
                algorithm, name(request.collective), request.num_ranks, request.channels,
                candidate.needs.empty() ? "" : ", it needs ", candidate.needs,
                names_of_supporting(request));
  }
  throw Error(Errc::kInvalidArgument, "unknown algorithm \"{}\"; known for {} on {} ranks: {}",
              algorithm, name(request.collective), request.num_ranks, names_of_supporting(request));
}

}  // namespace ropewalk::schedule
