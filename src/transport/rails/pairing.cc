#include "transport/rails/pairing.h"

#include <algorithm>
#include <cstdlib>

namespace ropewalk::transport::rails {
namespace {

struct Candidate {
  PairedDevices pair;
  int nearness = 0;  // 2: of one fabric, 1: not known, 0: of different ones
  double speed = 0;
};

}  // namespace

std::vector<PairedDevices> pair_up(std::span<const Pairable> own, std::span<const Pairable> peers,
                                   std::size_t most, bool each_once) {
  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < own.size(); ++i) {
    for (std::size_t j = 0; j < peers.size(); ++j) {
      if (own[i].provider != peers[j].provider) continue;
      const bool known = own[i].fabric != 0 && peers[j].fabric != 0;
      const int nearness = !known ? 1 : own[i].fabric == peers[j].fabric ? 2 : 0;
      candidates.push_back({{static_cast<int>(i), static_cast<int>(j)},
                            nearness,
                            std::min(own[i].speed_mbps, peers[j].speed_mbps)});
    }
  }
  // A device that has a partner in its own fabric is not paired across fabrics.
  const auto has_near = [&](const Candidate& far) {
    return std::ranges::any_of(candidates, [&](const Candidate& near) {
      return near.nearness == 2 &&
             (near.pair.own == far.pair.own || near.pair.peers == far.pair.peers);
    });
  };
  std::vector<Candidate> possible;
  std::ranges::copy_if(candidates, std::back_inserter(possible),
                       [&](const Candidate& each) { return each.nearness > 0 || !has_near(each); });
  std::ranges::stable_sort(possible, [](const Candidate& a, const Candidate& b) {
    if (a.nearness != b.nearness) return a.nearness > b.nearness;
    if (a.speed != b.speed) return a.speed > b.speed;
    return std::abs(a.pair.own - a.pair.peers) < std::abs(b.pair.own - b.pair.peers);
  });
  std::vector<PairedDevices> pairs;
  const auto uses = [&](auto member, int device) {
    return std::ranges::any_of(pairs,
                               [&](const PairedDevices& pair) { return pair.*member == device; });
  };
  for (const bool twice : {false, true}) {
    if (twice && each_once) break;
    for (const Candidate& each : possible) {
      if (pairs.size() == most) return pairs;
      const bool own_used = uses(&PairedDevices::own, each.pair.own);
      const bool peers_used = uses(&PairedDevices::peers, each.pair.peers);
      if (twice ? own_used && peers_used : own_used || peers_used) continue;
      pairs.push_back(each.pair);
    }
  }
  return pairs;
}

}  // namespace ropewalk::transport::rails
