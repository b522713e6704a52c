// Hierarchical: within hosts, then between them, then within them again. For several hosts.
// Horovod's hierarchical all-reduce is this, by NCCL within hosts and MPI between them; Blink's
// three phases are alike, with trees within hosts (Wang et al., "Blink: Fast and Generic
// Collectives for Distributed ML", MLSys 2020, section 3.5).
//
// Of H hosts with m ranks each, rank i of every host works on share i of the data, so that all
// ranks of a host send out of it at once, each over a NIC of its own where it has one. All
// exchanges are direct.
//
//   all_reduce       a reduce-scatter of the shares within each host, an all-reduce of each share
//                    between its ranks of all hosts, an all-gather within each host. Out of each
//                    rank's host go 2 (H - 1) / H of a share, over all ranks of it as much of the
//                    data; a ring sends 2 (n - 1) / n of the data out, over one rank for each
//                    channel. 4 hops; with two hosts 3, as they exchange whole shares: these are as
//                    many bytes.
//   reduce_scatter   the first half: 2 hops, (H - 1) units out of each rank's host, where a direct
//                    exchange of all ranks sends m (H - 1).
//   all_gather       the second half, alike.
//   broadcast        the root scatters shares within its host; each rank there hands its share on
//                    along the hosts; an all-gather within each host. H + 1 hops, the data once out
//                    of each host but the last; less than two units out of the root.
//   reduce           a reduce-scatter of the shares within each host; each share along the hosts to
//                    the root's, every host adding its own; from that host's ranks to the root.
//                    H + 1 hops, the data once out of each host but the root's, over all of its
//                    ranks alike; less than two units into the root.
//
// Where hosts have unequally many ranks, there are as many shares as the host with most has ranks,
// and a rank of a host with fewer works on several, in turns; so with blocks, for the ranks of
// other hosts. Each turn has the form above.
//
// No link holds more than two chunks of a round. From four hosts on a half so has 1 + H / 2 hops:
// what is summed up for every second host waits until the ranks beside have room.
#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "schedule/algorithms.h"
#include "schedule/building.h"

namespace ropewalk::schedule {
namespace {

/// The ranks by hosts. `hosts()` is 0 where there is nothing to do within hosts, or between them.
class Hosts {
 public:
  explicit Hosts(const std::vector<int>& host_of_rank) : host_(host_of_rank) {
    const auto ranks = static_cast<int>(host_of_rank.size());
    if (ranks == 0) return;
    ranks_.resize(static_cast<std::size_t>(std::ranges::max(host_of_rank)) + 1);
    index_.reserve(host_of_rank.size());
    for (int rank = 0; rank < ranks; ++rank) {
      std::vector<int>& on_host = ranks_[static_cast<std::size_t>(host_of(rank))];
      index_.push_back(static_cast<int>(on_host.size()));
      on_host.push_back(rank);
    }
    const auto ranks_of = [](const std::vector<int>& on_host) { return on_host.size(); };
    const bool empty = std::ranges::min(ranks_, {}, ranks_of).empty();
    most_ = static_cast<int>(std::ranges::max(ranks_, {}, ranks_of).size());
    if (empty || most_ < 2 || ranks_.size() < 2) ranks_.clear();
  }
  [[nodiscard]] int hosts() const { return static_cast<int>(ranks_.size()); }
  [[nodiscard]] int ranks_on(int host) const {
    return static_cast<int>(ranks_[static_cast<std::size_t>(host)].size());
  }
  /// Ranks of the host that has most.
  [[nodiscard]] int most() const { return most_; }
  [[nodiscard]] int host_of(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int index_of(int rank) const { return index_[static_cast<std::size_t>(rank)]; }
  [[nodiscard]] int rank(int host, int index) const {
    return ranks_[static_cast<std::size_t>(host)][static_cast<std::size_t>(index)];
  }
  /// The rank of `host` that works on a share, or for the ranks of that index on other hosts.
  [[nodiscard]] int owner(int host, int share) const { return rank(host, share % ranks_on(host)); }

 private:
  std::vector<std::vector<int>> ranks_;  // by host
  int most_ = 0;
  std::vector<int> host_;
  std::vector<int> index_;  // among those of its host
};

/// One rank's view on one channel: whom it sends to and receives from, in which order.
class Seat {
 public:
  Seat(const Hosts& all, int rank, int channel)
      : all_(all),
        host_(all.host_of(rank)),
        index_(all.index_of(rank)),
        own_ranks_(all.ranks_on(host_)),
        indices_after_(peers_after(index_, own_ranks_, channel)),
        indices_before_(peers_before(index_, own_ranks_, channel)),
        hosts_after_(peers_after(host_, all.hosts(), channel)),
        hosts_before_(peers_before(host_, all.hosts(), channel)) {}

  [[nodiscard]] int host() const { return host_; }
  [[nodiscard]] int index() const { return index_; }
  /// The indices of this host's other ranks, in the order of sending or of receiving.
  [[nodiscard]] const std::vector<int>& indices_after() const { return indices_after_; }
  [[nodiscard]] const std::vector<int>& indices_before() const { return indices_before_; }
  /// The other hosts. All ranks of a host have one order.
  [[nodiscard]] const std::vector<int>& hosts_after() const { return hosts_after_; }
  [[nodiscard]] const std::vector<int>& hosts_before() const { return hosts_before_; }
  [[nodiscard]] int beside(int index) const { return all_.rank(host_, index); }
  /// Who works on what this rank's index stands for.
  [[nodiscard]] int counterpart(int host) const { return all_.owner(host, index_); }
  /// Where this host has fewer ranks than there are shares, each of them works on one of each turn.
  /// @return the share of `index` in a turn; -1 if there is none
  [[nodiscard]] int share(int turn, int index, int shares) const {
    const int found = turn * own_ranks_ + index;
    return found < shares ? found : -1;
  }
  [[nodiscard]] int turns(int shares) const { return (shares + own_ranks_ - 1) / own_ranks_; }

  [[nodiscard]] std::vector<int> all_beside() const {
    std::vector<int> ranks;
    ranks.reserve(indices_after_.size());
    for (const int index : indices_after_) ranks.push_back(beside(index));
    return ranks;
  }
  /// The contributions of this host, in the order of its ranks.
  [[nodiscard]] std::vector<Operand> all_of_host() const {
    std::vector<Operand> operands;
    for (int i = 0; i < own_ranks_; ++i) {
      operands.push_back(i == index_ ? Operand::input() : Operand::link(beside(i)));
    }
    return operands;
  }

 private:
  const Hosts& all_;
  int host_;
  int index_;
  int own_ranks_;
  std::vector<int> indices_after_;
  std::vector<int> indices_before_;
  std::vector<int> hosts_after_;
  std::vector<int> hosts_before_;
};

/// Some ranks of a host, at most one for each rank of this host, which works for it.
struct Group {
  int host = 0;
  int turn = 0;
};

/// All ranks of these hosts, in groups.
std::vector<Group> groups_of(const Hosts& all, const Seat& seat, const std::vector<int>& hosts) {
  std::vector<Group> groups;
  for (const int host : hosts) {
    for (int turn = 0; turn < seat.turns(all.ranks_on(host)); ++turn)
      groups.push_back({host, turn});
  }
  return groups;
}

/// The rank of a group for which this host's rank of `index` works; -1 if there is none.
int member(const Hosts& all, const Seat& seat, const Group& group, int index) {
  const int there = seat.share(group.turn, index, all.ranks_on(group.host));
  return there < 0 ? -1 : all.rank(group.host, there);
}

/// Blocks 0 to ranks - 1. Group by group, the contributions to the blocks of its ranks are summed
/// up here and go there; this host's own blocks are the last, with the sums of the others. What is
/// given for a group is taken after what is given for the next one: two chunks on a link.
void add_reduce_scatter(StepList& steps, const Hosts& all, const Seat& seat,
                        std::vector<int> forward) {
  const auto give_beside = [&](const Group& group) {
    for (const int index : seat.indices_after()) {
      const int there = member(all, seat, group, index);
      if (there >= 0) steps.push_back(send(there, {Operand::input()}, {seat.beside(index)}));
    }
  };
  std::vector<Group> groups = groups_of(all, seat, seat.hosts_after());
  groups.push_back({seat.host(), 0});
  give_beside(groups.front());
  for (std::size_t k = 0; k + 1 < groups.size(); ++k) {
    give_beside(groups[k + 1]);
    const int there = member(all, seat, groups[k], seat.index());
    if (there >= 0) steps.push_back(send(there, seat.all_of_host(), {there}));
  }
  std::vector<Operand> operands = seat.all_of_host();
  for (const int host : seat.hosts_before()) {
    operands.push_back(Operand::link(seat.counterpart(host)));
  }
  steps.push_back(finish(seat.beside(seat.index()), std::move(operands), std::move(forward)));
}

/// To whom a rank gives its own block.
std::vector<int> receivers_of_own(const Seat& seat) {
  std::vector<int> ranks;
  for (const int host : seat.hosts_after()) ranks.push_back(seat.counterpart(host));
  for (const int rank : seat.all_beside()) ranks.push_back(rank);
  return ranks;
}

/// What comes after a rank has given its own block to receivers_of_own(): the blocks of this host's
/// others, and group by group the one that this rank works for, handed on here, and those that the
/// others hand on. What is handed on for a group is taken after what is handed on for the next one.
void add_receive_all(StepList& steps, const Hosts& all, const Seat& seat) {
  const auto take_beside = [&](const Group& group) {
    for (const int index : seat.indices_before()) {
      const int there = member(all, seat, group, index);
      if (there >= 0) steps.push_back(write(there, {Operand::link(seat.beside(index))}));
    }
  };
  Group before{seat.host(), 0};
  for (const Group& group : groups_of(all, seat, seat.hosts_before())) {
    const int there = member(all, seat, group, seat.index());
    if (there >= 0) steps.push_back(write(there, {Operand::link(there)}, seat.all_beside()));
    take_beside(std::exchange(before, group));
  }
  take_beside(before);
}

/// A turn's shares of this host's other ranks: this rank's contribution to each.
void give_shares(StepList& steps, const Seat& seat, int turn, int shares) {
  for (const int index : seat.indices_after()) {
    const int share = seat.share(turn, index, shares);
    if (share >= 0) steps.push_back(send(share, {Operand::input()}, {seat.beside(index)}));
  }
}

/// The same, as each of them hands it on.
void take_shares(StepList& steps, const Seat& seat, int turn, int shares) {
  for (const int index : seat.indices_before()) {
    const int share = seat.share(turn, index, shares);
    if (share >= 0) steps.push_back(write(share, {Operand::link(seat.beside(index))}));
  }
}

/// Blocks 0 to most ranks of a host - 1, the shares. Two ranks that exchange whole shares combine
/// them in one order, so that both have the same bits.
void add_all_reduce_of_two_hosts(StepList& steps, const Hosts& all, const Seat& seat) {
  const int shares = all.most();
  const int turns = seat.turns(shares);
  for (int turn = 0; turn < turns; ++turn) {
    give_shares(steps, seat, turn, shares);
    const int own = seat.share(turn, seat.index(), shares);
    if (own < 0) continue;
    steps.push_back(write(own, seat.all_of_host(), {all.owner(1 - seat.host(), own)}));
  }
  for (int turn = 0; turn < turns; ++turn) {
    if (const int own = seat.share(turn, seat.index(), shares); own >= 0) {
      std::vector<Operand> sums = {Operand::output(),
                                   Operand::link(all.owner(1 - seat.host(), own))};
      if (seat.host() == 1) std::swap(sums[0], sums[1]);
      steps.push_back(finish(own, std::move(sums), seat.all_beside()));
    }
    take_shares(steps, seat, turn, shares);
  }
}

void add_broadcast(StepList& steps, const Hosts& all, const Seat& seat, int root) {
  const int root_host = all.host_of(root);
  const int root_index = all.index_of(root);
  const int shares = all.most();
  const int next = around(seat.host(), 1, all.hosts());
  const bool is_root = seat.host() == root_host && seat.index() == root_index;
  const bool beside_root = seat.host() == root_host;
  for (int turn = 0; turn < seat.turns(shares); ++turn) {
    const int own = seat.share(turn, seat.index(), shares);
    std::vector<int> forward;
    if (own >= 0 && next != root_host) forward.push_back(all.owner(next, own));
    if (is_root) {
      for (const int index : seat.indices_after()) {
        const int share = seat.share(turn, index, shares);
        if (share < 0) continue;
        steps.push_back(write(share, {Operand::input()}, {seat.beside(index)}));
      }
      if (own < 0) continue;
      std::ranges::copy(seat.all_beside(), std::back_inserter(forward));
      steps.push_back(write(own, {Operand::input()}, std::move(forward)));
      continue;
    }
    if (own >= 0) {
      const int source = beside_root ? root : all.owner(around(seat.host(), -1, all.hosts()), own);
      for (const int rank : seat.all_beside()) {
        if (rank != root) forward.push_back(rank);
      }
      steps.push_back(write(own, {Operand::link(source)}, std::move(forward)));
    }
    take_shares(steps, seat, turn, shares);
  }
}

/// The mirror image of add_broadcast(): shares go along the hosts towards the root's.
void add_reduce(StepList& steps, const Hosts& all, const Seat& seat, int root) {
  const int root_host = all.host_of(root);
  const int shares = all.most();
  const int before = around(seat.host(), 1, all.hosts());
  const bool is_root = seat.host() == root_host && seat.index() == all.index_of(root);
  for (int turn = 0; turn < seat.turns(shares); ++turn) {
    give_shares(steps, seat, turn, shares);
    const int own = seat.share(turn, seat.index(), shares);
    if (own >= 0) {
      std::vector<Operand> operands = seat.all_of_host();
      if (before != root_host) operands.push_back(Operand::link(all.owner(before, own)));
      if (seat.host() != root_host) {
        const int next = all.owner(around(seat.host(), -1, all.hosts()), own);
        steps.push_back(send(own, std::move(operands), {next}));
        continue;
      }
      if (!is_root) {
        steps.push_back(send(own, std::move(operands), {root}));
        steps.back().finished = true;  // all contributions are in it
        continue;
      }
      steps.push_back(finish(own, std::move(operands), {}));
    }
    if (is_root) take_shares(steps, seat, turn, shares);
  }
}

bool hierarchical_supports(const Request& request) noexcept {
  switch (request.collective) {
    case Collective::kAllReduce:
    case Collective::kReduceScatter:
    case Collective::kAllGather:
    case Collective::kBroadcast:
    case Collective::kReduce: break;
    default: return false;
  }
  return request.host_of_rank.size() == static_cast<std::size_t>(request.num_ranks) &&
         Hosts(request.host_of_rank).hosts() > 0 &&
         affordable(4.0 * request.num_ranks * request.num_ranks * request.channels);
}

Schedule compile_hierarchical(const Request& request) {
  const Hosts all(request.host_of_rank);
  const bool reduces_all = request.collective == Collective::kAllReduce;
  int parts = 1;
  if (reduces_all) parts = all.hosts() == 2 ? all.most() : request.num_ranks;
  if (has_root(request.collective)) parts = all.most();
  Schedule schedule = blank("hierarchical", request, parts, request.channels);
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    int channel = 0;
    for (StepList& steps : schedule.programs[static_cast<std::size_t>(rank)]) {
      const Seat seat(all, rank, channel++);
      if (request.collective == Collective::kBroadcast) {
        add_broadcast(steps, all, seat, request.root);
      } else if (request.collective == Collective::kReduce) {
        add_reduce(steps, all, seat, request.root);
      } else if (request.collective == Collective::kReduceScatter) {
        add_reduce_scatter(steps, all, seat, {});
      } else if (request.collective == Collective::kAllGather) {
        steps.push_back(write(rank, {Operand::input()}, receivers_of_own(seat)));
        add_receive_all(steps, all, seat);
      } else if (all.hosts() == 2) {
        add_all_reduce_of_two_hosts(steps, all, seat);
      } else {
        add_reduce_scatter(steps, all, seat, receivers_of_own(seat));
        add_receive_all(steps, all, seat);
      }
    }
  }
  return schedule;
}

}  // namespace

const Algorithm kHierarchical{"hierarchical",
                              "within hosts, between equal ranks of all hosts, within hosts",
                              hierarchical_supports, compile_hierarchical,
                              "at least two hosts, and on one of them at least two ranks"};

}  // namespace ropewalk::schedule
