#include "comm/prepared.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "comm/scaling.h"
#include "core/error.h"
#include "schedule/lags.h"
#include "schedule/layout.h"

namespace ropewalk::comm {
namespace {

// Parts begin at cache lines (of two, for the adjacent-line prefetcher), so that no two ranks write
// one line.
constexpr std::size_t kGranuleBytes = 128;

// The route of the messages from one rank to another on a channel: that of the first one. A plan's
// trees may take several paths between two ranks that it joins through switches; they are then all
// paced as this one.
link::Route route_of(const tune::RoutedSchedule& routed, int channel, int source, int destination) {
  const schedule::StepList& steps =
      routed.checked->schedule()
          .programs[static_cast<std::size_t>(source)][static_cast<std::size_t>(channel)];
  for (const schedule::Step& step : steps) {
    if (std::ranges::find(step.send, destination) == step.send.end()) continue;
    const std::vector<int>* path = routed.routes.find(channel, step.block, source, destination);
    if (path != nullptr) return *path;
  }
  return {};
}

// A writer that waits for a slot's other readers waits for steps of earlier rounds alone if it uses
// no slot twice in a round. Such waits close no circle: what a step waits for otherwise, data and
// room in the link itself, is of its own round or an earlier one, unless some steps lag.
bool may_share_slots(const executor::Strand& strand) {
  if (strand.last_lag > 0) return false;
  std::vector<std::uint32_t> messages(strand.sends.size());
  for (const executor::SendRecord& send : strand.program->sends) ++messages[send.end];
  for (std::size_t k = 0; k < messages.size(); ++k) {
    const executor::SendEnd* end = strand.sends[k];
    if (end != nullptr && messages[k] > end->shape.slots) return false;
  }
  return true;
}

}  // namespace

std::size_t granule_of(std::size_t element_bytes) noexcept {
  return std::max<std::size_t>(1, kGranuleBytes / element_bytes);
}

PreparedCollective::PreparedCollective(std::shared_ptr<const schedule::Checked> checked, int rank,
                                       const tune::RoutedSchedule* routed, std::uint32_t lag_slots)
    : checked_(std::move(checked)) {
  const int channels = checked_->schedule().num_channels();
  programs_.reserve(static_cast<std::size_t>(channels));
  if (lag_slots > 0) one_round_.reserve(static_cast<std::size_t>(channels));
  for (int c = 0; c < channels; ++c) {
    programs_.push_back(executor::make_program(checked_->schedule(), checked_->report(), rank, c));
    if (lag_slots == 0) continue;
    one_round_.push_back(programs_.back());
    const auto lags = schedule::find_lags(checked_->schedule(), c, lag_slots);
    executor::set_lags(programs_.back(), lags[static_cast<std::size_t>(rank)]);
  }
  all_by_address_ = tune::ScheduleShape::of(*checked_).by_address;
  for (const executor::Program& program : programs_) {
    executor::Strand strand;
    strand.program = &program;
    strand.sends.resize(program.send_peers.size());
    strand.receives.resize(program.receive_peers.size());
    strand.sources.resize(program.max_operands);
    strand.destinations.resize(program.max_sends + 1);
    strands_.push_back(std::move(strand));
    Routes routes{std::vector<link::Route>(program.send_peers.size()),
                  std::vector<link::Route>(program.receive_peers.size())};
    if (routed != nullptr) {
      for (std::size_t k = 0; k < program.send_peers.size(); ++k) {
        routes.sends[k] = route_of(*routed, program.channel, rank, program.send_peers[k]);
      }
      for (std::size_t k = 0; k < program.receive_peers.size(); ++k) {
        routes.receives[k] = route_of(*routed, program.channel, program.receive_peers[k], rank);
      }
    }
    routes_.push_back(std::move(routes));
  }
}

bool PreparedCollective::connect_more(link::Links& links) {
  bool all = true;
  for (std::size_t s = 0; s < strands_.size(); ++s) {
    executor::Strand& strand = strands_[s];
    for (std::size_t k = 0; k < strand.receives.size(); ++k) {
      strand.receives[k] = links.receive_end(
          strand.program->channel, strand.program->receive_peers[k], routes_[s].receives[k]);
      all &= strand.receives[k] != nullptr;
    }
  }
  for (std::size_t s = 0; s < strands_.size(); ++s) {
    executor::Strand& strand = strands_[s];
    for (std::size_t k = 0; k < strand.sends.size(); ++k) {
      strand.sends[k] = links.send_end(strand.program->channel, strand.program->send_peers[k],
                                       routes_[s].sends[k]);
      all &= strand.sends[k] != nullptr;
    }
  }
  connected_ = all;
  return connected_;
}

void PreparedCollective::arm(const CollectiveCall& call, bool in_place,
                             const executor::CallTag& tag, const tune::Choice& choice,
                             int num_ranks, bool check_tags, std::size_t chunk_bytes) {
  // Repeated calls of one shape are the common case: all but the buffers is still right.
  const Shape shape{call.count, call.scalar, chunk_bytes, choice.index, call.type, call.op};
  if (shape_ != shape) {
    set_arithmetic(call, num_ranks);
    cut(call, choice, chunk_bytes);
    if (strands_.size() == 1) short_walk_.prepare(strands_.front(), call_);
    shape_ = shape;
  }
  call_.input = static_cast<const std::byte*>(call.input);
  call_.output = static_cast<std::byte*>(call.output);
  call_.in_place = in_place;
  call_.check_tags = check_tags;
  call_.tag = tag;
  restart();
}

std::vector<trace::SentBytes> PreparedCollective::sent_bytes(const CollectiveCall& shape) const {
  const std::size_t element = size_of(shape.type);
  const std::size_t granule = granule_of(element);
  const schedule::Schedule& schedule = checked_->schedule();
  std::map<int, std::size_t> elements;
  for (const executor::Program& program : programs_) {
    const schedule::Range range = schedule::channel_range(
        shape.count, schedule.weight.data(), schedule.num_channels(), program.channel, granule);
    for (const executor::PartSent& sent : executor::parts_sent(program)) {
      elements[sent.peer] += schedule::part_range(range, schedule.parts, sent.part, granule).count;
    }
  }
  std::vector<trace::SentBytes> bytes;
  for (const auto& [peer, many] : elements) {
    if (many > 0) bytes.push_back({peer, many * element});
  }
  return bytes;
}

void PreparedCollective::set_arithmetic(const CollectiveCall& call, int num_ranks) {
  call_.count = call.count;
  call_.type = call.type;
  call_.element_bytes = size_of(call.type);
  call_.op = call.op;
  const Scaling scaling = scaling_of(call, num_ranks);
  call_.scaled = scaling.scaled;
  call_.scalar = scaling.scalar;
  call_.divisor = scaling.divisor;
}

void PreparedCollective::cut(const CollectiveCall& call, const tune::Choice& choice,
                             std::size_t given_bytes) {
  const std::size_t element = size_of(call.type);
  const std::size_t granule = granule_of(element);
  const schedule::Schedule& schedule = checked_->schedule();
  std::size_t chunk_bytes = choice.chunk_bytes;
  call_.address_bytes = choice.address_bytes;
  call_.share_bytes = choice.share_bytes;
  // A scaled input differs from the user's buffer, so it cannot be sent by address.
  if (choice.address_chunk_bytes > chunk_bytes && all_by_address_ && !call_.scaled) {
    chunk_bytes = choice.address_chunk_bytes;
    call_.address_bytes = std::min(choice.address_bytes, choice.chunk_bytes);
  }
  if (given_bytes > 0) chunk_bytes = given_bytes;
  // Channels of different weights (a plan's) take the same number of rounds, each with chunks of
  // its own size: links are shared chunk by chunk, so that all channels end together.
  const bool weighted = std::adjacent_find(schedule.weight.begin(), schedule.weight.end(),
                                           std::not_equal_to<>()) != schedule.weight.end();
  std::size_t rounds = 1;
  for (std::size_t c = 0; c < strands_.size(); ++c) {
    executor::Strand& strand = strands_[c];
    const schedule::Range range = schedule::channel_range(
        call.count, schedule.weight.data(), schedule.num_channels(), static_cast<int>(c), granule);
    strand.begin = range.begin;
    strand.length = range.count;
    strand.part_length = schedule::part_range({0, range.count}, schedule.parts, 0, granule).count;
    strand.chunk_length = std::max<std::size_t>(1, chunk_bytes / element);
    strand.rounds = (strand.part_length + strand.chunk_length - 1) / strand.chunk_length;
    rounds = std::max(rounds, strand.rounds);
  }
  for (std::size_t c = 0; c < strands_.size(); ++c) {
    executor::Strand& strand = strands_[c];
    if (weighted && rounds > 1) {
      const std::size_t even = (strand.part_length + rounds - 1) / rounds;
      strand.chunk_length = std::min(
          strand.chunk_length, std::max<std::size_t>(1, (even + granule - 1) / granule) * granule);
      strand.rounds = (strand.part_length + strand.chunk_length - 1) / strand.chunk_length;
    }
    take_program(c);
    if (!may_share_slots(strand)) {
      strand.common_slot_bytes = std::numeric_limits<std::size_t>::max();
    } else {
      strand.common_slot_bytes =
          strand.receives.empty() ? choice.sender_common_slot_bytes : choice.common_slot_bytes;
    }
  }
}

void PreparedCollective::take_program(std::size_t channel) {
  executor::Strand& strand = strands_[channel];
  const bool in_order = strand.rounds <= 1 && !one_round_.empty();
  strand.program = in_order ? &one_round_[channel] : &programs_[channel];
  strand.last_lag = 0;
  for (const executor::StepRecord& step : strand.program->steps) {
    strand.last_lag = std::max(strand.last_lag, step.lag);
  }
}

}  // namespace ropewalk::comm
