#include "tune/machine_cost.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "core/index.h"
#include "plan/chunk_model.h"
#include "schedule/lags.h"
#include "schedule/layout.h"
#include "schedule/traffic.h"

namespace ropewalk::tune {
namespace {

// Rounds are walked for sizes that are powers of this; between two of them times are nearly linear.
constexpr double kSizeStep = 4;
// Rounds of a walk, from which the time between two of them is taken: channels run ahead of each
// other, and neither the first nor the last rounds are like those between them. Fewer where a round
// has so many messages that it would take too long.
constexpr int kMostRounds = 8;
constexpr int kLeastRounds = 3;
constexpr std::size_t kWalkedMessages = 8000;
// What a chunk takes beside its bytes and latency, of the rank that has most of them in a round. On
// an emulated DGX-1V a broadcast of 64 MiB over 13 channels reached 43.9 GB/s with chunks of 8
// KiB, 50.4 with 16, 54.4 with 32 and 57.1 with 64, of 60.3: 0.12 to 0.15 us for each round.
constexpr double kChunkSeconds = 1e-8;

// Bytes of a message, as algbw counts them, for each byte of a unit.
double units_of_message(Collective collective, int num_ranks) {
  if (collective == Collective::kSendRecv) return 1;
  if (collective == Collective::kAllToAll) return num_ranks;
  return schedule::num_units(collective, num_ranks);
}

}  // namespace

const std::vector<int>& DefaultRoutes::find(int source, int destination) {
  const auto [entry, is_new] = routes_.try_emplace({source, destination});
  if (is_new) entry->second = schedule::default_route(machine_, source, destination);
  return entry->second;
}

MachineCost::MachineCost(DefaultRoutes& routes, const schedule::Schedule& schedule,
                         int longest_path, const schedule::Routes& given,
                         const MachineCostOptions& options)
    : options_(options), num_ranks_(schedule.num_ranks), longest_path_(longest_path) {
  const topology::Topology& machine = routes.machine();
  std::map<int, int> index_of_link;
  std::map<std::vector<int>, int> known_paths;
  const auto path_of = [&](const std::vector<int>& links) {
    const auto [entry, is_new] = known_paths.try_emplace(links, static_cast<int>(paths_.size()));
    if (is_new) {
      Path path;
      path.slowest = std::numeric_limits<double>::infinity();
      for (const int index : links) {
        const topology::Link& link = machine.link(at(index));
        const auto [found, first] =
            index_of_link.try_emplace(index, static_cast<int>(capacity_.size()));
        if (first) {
          capacity_.push_back(link.capacity * 1e9);
          links_.push_back({index, 0});
        }
        path.links.push_back(found->second);
        path.latency += topology::latency_us(link) * 1e-6;
        path.slowest = std::min(path.slowest, link.capacity * 1e9);
      }
      least_latency_ = std::min(least_latency_, path.latency);
      paths_.push_back(std::move(path));
    }
    return entry->second;
  };
  std::vector<int> strands_of(at(schedule.num_ranks));  // of each rank
  double total_weight = 0;
  for (const int weight : schedule.weight) total_weight += weight;
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    const double block = schedule.weight[at(channel)] / total_weight / schedule.parts;
    std::map<std::pair<int, int>, int> pipe_of;
    const auto pipe = [&](int source, int destination) {
      const auto [entry, is_new] =
          pipe_of.try_emplace({source, destination}, static_cast<int>(pipes_.size()));
      if (is_new) pipes_.emplace_back();
      return entry->second;
    };
    std::vector<std::vector<std::uint32_t>> lags;
    if (options.lags) {
      lags = schedule::find_lags(schedule, channel, static_cast<std::uint32_t>(options.slots));
    }
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      const int index = static_cast<int>(strands_.size());
      Strand strand{rank, block, static_cast<int>(steps_.size()), 0};
      std::map<std::pair<int, int>, int> sent;
      const schedule::StepList& steps = schedule.programs[at(rank)][at(channel)];
      for (std::size_t s = 0; s < steps.size(); ++s) {
        const schedule::Step& step = steps[s];
        Step made;
        if (options.lags) made.lag = static_cast<int>(lags[at(rank)][s]);
        made.first_receive = static_cast<int>(receives_.size());
        made.first_send = static_cast<int>(sends_.size());
        for (const schedule::Operand& operand : step.operands) {
          if (operand.kind != schedule::Operand::Kind::kLink) continue;
          receives_.push_back(pipe(operand.peer, rank));
          pipes_[at(receives_.back())].receiver = index;
        }
        for (const int peer : step.send) {
          const std::vector<int>* path =
              given.find(channel, step.block, rank, peer, sent[{step.block, peer}]++);
          const Send send{pipe(rank, peer),
                          path_of(path != nullptr ? *path : routes.find(rank, peer))};
          pipes_[at(send.pipe)].sender = index;
          for (const int position : paths_[at(send.path)].links) {
            links_[at(position)].share += block;
          }
          sends_.push_back(send);
        }
        made.last_receive = static_cast<int>(receives_.size());
        made.last_send = static_cast<int>(sends_.size());
        if (made.first_receive != made.last_receive || made.first_send != made.last_send) {
          steps_.push_back(made);
          strand.last_lag = std::max(strand.last_lag, made.lag);
        }
      }
      strand.last_step = static_cast<int>(steps_.size());
      if (strand.first_step != strand.last_step) {
        strands_.push_back(strand);
        busiest_strands_ = std::max(busiest_strands_, ++strands_of[at(rank)]);
        largest_block_ = std::max(largest_block_, block);
      }
    }
  }
  for (std::size_t i = 0; i < links_.size(); ++i) {
    busiest_ = std::max(busiest_, links_[i].share / capacity_[i]);
  }
  if (paths_.empty()) least_latency_ = 0;
  const double units = units_of_message(schedule.collective, schedule.num_ranks);
  algbw_ = busiest_ > 0 ? units / busiest_ / 1e9 : std::numeric_limits<double>::infinity();
  for (LinkShare& link : links_) link.share /= units;
}

std::vector<LinkShare> MachineCost::limiting_links() const {
  std::vector<LinkShare> out;
  for (std::size_t i = 0; i < links_.size(); ++i) {
    if (links_[i].share * algbw_ * 1e9 >= capacity_[i] * (1 - 1e-6)) out.push_back(links_[i]);
  }
  std::sort(out.begin(), out.end(),
            [](const LinkShare& a, const LinkShare& b) { return a.link < b.link; });
  return out;
}

double MachineCost::least(double unit_bytes) const {
  return std::max(busiest_ * unit_bytes, longest_path_ * least_latency_);
}

double MachineCost::predict(double unit_bytes, double chunk_bytes) {
  if (sends_.empty()) return 0;
  const double rounds = std::max(1.0, std::ceil(unit_bytes * largest_block_ / chunk_bytes - 1e-9));
  const double size = std::max(1.0, unit_bytes / rounds);
  // Between two sizes that were walked.
  const int exponent = static_cast<int>(std::floor(std::log(size) / std::log(kSizeStep)));
  const double low = std::pow(kSizeStep, exponent);
  const double fraction = (size - low) / (low * kSizeStep - low);
  const Rounds small = walked(exponent);
  const Rounds large = walked(exponent + 1);
  const auto between = [&](double a, double b) { return a + (b - a) * fraction; };
  const double first = between(small.first, large.first);
  const double period = std::max(between(small.period, large.period), busiest_ * size) +
                        kChunkSeconds * busiest_strands_;
  const double alone = between(small.alone, large.alone);
  return std::min(alone * rounds, plan::pipelined_seconds(first, rounds, period));
}

const MachineCost::Rounds& MachineCost::walked(int exponent) {
  const auto [entry, is_new] = walked_.try_emplace(exponent);
  if (is_new) entry->second = rounds_of(std::pow(kSizeStep, exponent));
  return entry->second;
}

MachineCost::Rounds MachineCost::rounds_of(double unit_bytes) const {
  if (sends_.empty()) return {};
  if (sends_.size() > options_.most_walked) return in_closed_form(unit_bytes);
  int most_lag = 0;
  for (const Strand& strand : strands_) most_lag = std::max(most_lag, strand.last_lag);
  // Steps that lag fill their links one turn after the other: until all of them run, no round
  // takes as long as later ones do, and what is filled once is drained once.
  const auto wanted =
      static_cast<std::size_t>(most_lag > 0 ? 2 * most_lag + kMostRounds : kMostRounds);
  const int rounds = static_cast<int>(
      std::clamp<std::size_t>(kWalkedMessages / sends_.size(), kLeastRounds, wanted));
  const std::vector<double> ends = walk(unit_bytes, rounds);
  const double alone = walk(unit_bytes, 1).back();
  if (most_lag == 0) return {alone, alone, (ends.back() - ends.front()) / (rounds - 1)};
  const int half = rounds / 2;
  const double period = (ends.back() - ends[at(half)]) / (rounds - 1 - half);
  return {alone, ends.back() - period * (rounds - 1), period};
}

MachineCost::Rounds MachineCost::in_closed_form(double unit_bytes) const {
  double hop = 0;
  for (const Path& path : paths_) {
    hop = std::max(hop, path.latency + largest_block_ * unit_bytes / path.slowest);
  }
  hop += 2 * options_.message_seconds;
  const double busiest = busiest_ * unit_bytes;
  const double first = std::max(longest_path_ * hop, busiest);
  return {first, first, busiest};
}

// When each of the rounds has ended.
std::vector<double> MachineCost::walk(double unit_bytes, int rounds) const {
  struct Message {
    int send = 0;  // in sends_
    int round = 0;
    double bytes = 0;
    double ready = 0;  // its sender has done its part
  };
  struct PipeState {
    std::deque<Message> waiting;
    Message current;
    bool busy = false;
    int arrived = 0;  // and not taken
    int filled = 0;   // slots
    // Of the current message, once it moves.
    double left = 0;  // bytes at `since`
    double rate = 0;  // bytes per second
    double since = 0;
    int version = 0;  // of its end among the events
  };
  struct StrandState {
    int step = 0;
    int turn = 0;  // schedule/lags.h; a round where nothing lags
  };
  enum class Kind { kStart, kEnd, kArrive };
  // Time, order of making, kind, pipe, version.
  using Event = std::tuple<double, int, Kind, int, int>;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  int made = 0;
  std::vector<PipeState> pipes(pipes_.size());
  std::vector<StrandState> strands(strands_.size());
  std::vector<std::vector<int>> moving(capacity_.size());  // pipes, by link
  std::vector<double> sender_free(at(num_ranks_), 0);
  std::vector<double> receiver_free(at(num_ranks_), 0);
  std::vector<double> ends(at(rounds), 0);
  std::vector<int> ready;
  for (std::size_t s = 0; s < strands_.size(); ++s) {
    strands[s].step = strands_[s].first_step;
    ready.push_back(static_cast<int>(s));
  }
  double now = 0;
  const auto begin_next = [&](int index) {
    PipeState& pipe = pipes[at(index)];
    if (pipe.busy || pipe.waiting.empty()) return;
    pipe.busy = true;
    pipe.current = pipe.waiting.front();
    pipe.waiting.pop_front();
    const double latency = paths_[at(sends_[at(pipe.current.send)].path)].latency;
    const double start = options_.overlaps ? std::max(now, pipe.current.ready + latency)
                                           : std::max(now, pipe.current.ready) + latency;
    events.emplace(start, made++, Kind::kStart, index, 0);
  };
  // All messages on a link share it equally; a message moves at the rate of its slowest link.
  const auto path_of = [&](int index) -> const Path& {
    return paths_[at(sends_[at(pipes[at(index)].current.send)].path)];
  };
  const auto share_anew = [&](const Path& around) {
    for (const int link : around.links) {
      for (const int index : moving[at(link)]) {
        PipeState& pipe = pipes[at(index)];
        double rate = std::numeric_limits<double>::infinity();
        for (const int passed : path_of(index).links) {
          rate = std::min(rate,
                          capacity_[at(passed)] / static_cast<double>(moving[at(passed)].size()));
        }
        if (rate == pipe.rate) continue;
        pipe.left = std::max(0.0, pipe.left - pipe.rate * (now - pipe.since));
        pipe.since = now;
        pipe.rate = rate;
        events.emplace(now + pipe.left / rate, made++, Kind::kEnd, index, ++pipe.version);
      }
    }
  };

  const auto can_do = [&](const Step& step) {
    for (int i = step.first_receive; i < step.last_receive; ++i) {
      if (pipes[at(receives_[at(i)])].arrived == 0) return false;
    }
    for (int i = step.first_send; i < step.last_send; ++i) {
      if (pipes[at(sends_[at(i)].pipe)].filled >= options_.slots) return false;
    }
    return true;
  };
  const auto go_on = [&] {
    while (!ready.empty()) {
      const int index = ready.back();
      ready.pop_back();
      StrandState& state = strands[at(index)];
      const Strand& strand = strands_[at(index)];
      while (state.turn < rounds + strand.last_lag) {
        const Step& step = steps_[at(state.step)];
        const int round = state.turn - step.lag;
        const bool is_there = round >= 0 && round < rounds;
        if (is_there && !can_do(step)) break;
        if (++state.step == strand.last_step) {
          state.step = strand.first_step;
          ++state.turn;
        }
        if (!is_there) continue;
        for (int i = step.first_receive; i < step.last_receive; ++i) {
          const int pipe = receives_[at(i)];
          --pipes[at(pipe)].arrived;
          --pipes[at(pipe)].filled;
          ready.push_back(pipes_[at(pipe)].sender);
        }
        for (int i = step.first_send; i < step.last_send; ++i) {
          PipeState& pipe = pipes[at(sends_[at(i)].pipe)];
          ++pipe.filled;
          double& sender = sender_free[at(strand.rank)];
          sender = std::max(sender, now) + options_.message_seconds;
          pipe.waiting.push_back({i, round, strand.block * unit_bytes, sender});
          begin_next(sends_[at(i)].pipe);
        }
      }
    }
  };
  go_on();
  while (!events.empty()) {
    const auto [time, order, kind, index, version] = events.top();
    events.pop();
    PipeState& pipe = pipes[at(index)];
    if (kind == Kind::kEnd && version != pipe.version) continue;
    now = time;
    if (kind == Kind::kStart) {
      pipe.left = pipe.current.bytes;
      pipe.rate = 0;
      pipe.since = now;
      const Path& path = path_of(index);
      for (const int link : path.links) moving[at(link)].push_back(index);
      share_anew(path);
      continue;
    }
    if (kind == Kind::kEnd) {
      ++pipe.version;
      const Path& path = path_of(index);
      for (const int link : path.links) std::erase(moving[at(link)], index);
      share_anew(path);
      double& taker = receiver_free[at(strands_[at(pipes_[at(index)].receiver)].rank)];
      taker = std::max(taker, now) + options_.message_seconds;
      const double end = options_.message_seconds > 0 ? taker : now;
      ends[at(pipe.current.round)] = std::max(ends[at(pipe.current.round)], end);
      events.emplace(end, made++, Kind::kArrive, index, 0);
      pipe.busy = false;
      begin_next(index);
      continue;
    }
    if (kind == Kind::kArrive) {
      ++pipe.arrived;
      ready.push_back(pipes_[at(index)].receiver);
    }
    go_on();
  }
  return ends;
}

}  // namespace ropewalk::tune
