#include "tune/host_pricing.h"

#include <algorithm>
#include <limits>

namespace ropewalk::tune {
namespace {

// Smaller chunks must promise a tenth: the model knows only the latency of a call, and of calls
// back to back fewer chunks are better.
constexpr double kWorthCutting = 0.9;
// Of the links of a machine where steps lag the model knows what filling and draining takes, too.
constexpr double kWorthCuttingLags = 0.97;
// Nor do smaller ones pay. Over one hop, halves of 4 KiB and less took 1.2 to 1.4 times as long as
// the whole, back to back, and gained little one at a time.
constexpr std::size_t kLeastHostChunk = 2048;
constexpr std::size_t kLeastHostChunkOverOneHop = 8192;
// Shorter data is usually in caches, whatever the rates of data from memory.
constexpr std::size_t kLeastByAddress = std::size_t{32} << 10U;
// Up to here the two copies through a slot follow each other through caches, and the system call
// must promise to be sooner by far. Two processes on an EPYC, data from memory: sends, all-gathers,
// scatters and all-to-alls of blocks of 32 KiB took 1.4 times as long by address as through slots,
// of 64 KiB 0.9 to 1.6, by where the hypervisor had the two cores; the model said 1.0.
constexpr std::size_t kShortByAddress = std::size_t{128} << 10U;
constexpr double kSoonerByFar = 0.6;
// Ranks that pass on what they have copied by address hand over each piece twice, which the model
// does not know. Sixteen cores of a Xeon: broadcasts by trees and chains of 128 KiB to 2 MiB
// took 1.1 to 1.7 times as long by address as through slots, all-gathers by recursive doubling 1.0
// to 1.5; the model said 0.8 to 0.9.
constexpr double kSoonerPassedOn = 0.7;
// Through slots both ends copy at the same time, so that the second copy costs half of one. Sixteen
// cores of a Xeon, where by address seemed sooner by 2%: reduces of 2 MiB by trees and chains of
// four and eight ranks took 1.7 to 2.1 times as long with chunks of 32 KiB by address.
constexpr double kCopiesOfStaged = 1.5;
// From this many on, chunks of a whole slot keep the pipeline as full as the usual ones.
constexpr std::size_t kManyChunks = 8;
// A root that gives addresses waits until its readers have had their turns of a core that they
// share. Four processes on two cores of an EPYC: broadcasts and scatters of 32 KiB to 1 MiB took 2
// to 4 times as long by address as through slots, where the root goes on; from 16 MiB on as long.
constexpr std::size_t kLeastOfWaitingRoot = std::size_t{8} << 20U;
// One rank receives from several, so that no trial can be agreed on (comm/call_decider.h): what
// copies by address is taken although it seems longer. Four processes on two cores of an EPYC,
// gathers of 4 and 16 MiB: of the time through slots 0.33 to 0.54 with data in caches and 0.72 to
// 0.93 with data from memory, where pages are large; with pages of 4 KiB 0.67 to 0.89 and 1.22 to
// 1.56.
constexpr double kWithoutTrial = 1.35;
// Where ranks share cores each acknowledgement of a slot that several read comes between the turns
// of its writer. Four processes on two cores of an EPYC, data in caches: all-reduces of 4 and 8 KiB
// took 1.05 to 1.13 times as long with common slots as with one for each reader, of 32 KiB and more
// 0.73 to 0.95. Of a root, which writes again as soon as one slot is free, broadcasts of 32 to
// 128 KiB took 1.04 to 1.15 times as long, shorter and longer ones 0.85 to 0.97.
constexpr std::size_t kLeastCommonSlot = std::size_t{16} << 10U;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

}  // namespace

HostPricing::HostPricing(const Config& config, const GroupFacts& facts,
                         const MachineConstants& constants)
    : facts_(facts) {
  if (facts_.chunk_bytes == 0) facts_.chunk_bytes = facts_.slot_bytes;
  context_.machine = constants;
  context_.same_process = facts.same_process;
  context_.ranks_per_core = std::max(1.0, facts.ranks_per_processor);
  context_.network = facts.num_hosts > 1;
  context_.short_bytes = facts.short_bytes;
  context_.joined_bytes = facts.joined_bytes;
  context_.nic_sharing_cost = facts.nic_sharing_cost;
  // Where ranks outnumber cores, a rank that helps takes the core from another one that copies:
  // shorter scatters then took 1.4 times as long.
  context_.share_bytes = context_.ranks_per_core > 1 ? 1 << 20U : 64 << 10U;
  const std::size_t given = config.bytes(Setting::kSingleCopyBytes);
  given_address_bytes_ = given != 0;
  // Between threads of a process an address costs no system call, and is always the faster way.
  adapts_ = config.flag(Setting::kAdaptCopies) && !config.flag(Setting::kAdaptChunks) &&
            config.flag(Setting::kCheckCalls) && given == 0 && !facts.same_process;
  if (given != 0) {
    address_bytes_ = given;
  } else if (facts.same_process) {
    // No system call: it pays as soon as it saves a copy of some lines.
    address_bytes_ = 1024;
  } else {
    // One copy instead of two pays when the saved one costs more than the system call.
    address_bytes_ = std::max(
        kLeastByAddress, static_cast<std::size_t>(constants.address_cost * constants.copy_rate));
  }
}

double HostPricing::worth_of(std::size_t bytes) const noexcept {
  const bool certain = given_address_bytes_ || facts_.same_process || bytes >= kShortByAddress;
  return certain ? 1 : kSoonerByFar;
}

bool HostPricing::address_pays(std::size_t chunk) const noexcept {
  if (given_address_bytes_ || facts_.same_process) return true;
  const MachineConstants& machine = context_.machine;
  const auto bytes = static_cast<double>(chunk);
  return machine.address_cost + bytes / machine.address_move_rate <
         worth_of(chunk) * kCopiesOfStaged * bytes / machine.copy_rate;
}

bool HostPricing::has_one_receiver(const ScheduleShape& shape) const noexcept {
  int most = 0;
  for (const RankLoad& load : shape.loads) most = std::max(most, load.copied_in);
  return shape.ranks > 2 && shape.all.combined_in == 0 && most == shape.all.copied_in &&
         !given_address_bytes_ && !facts_.same_process;
}

bool HostPricing::root_waits(const ScheduleShape& shape, std::size_t unit_bytes) const noexcept {
  return shape.rooted && context_.ranks_per_core > 1 && unit_bytes < kLeastOfWaitingRoot &&
         !given_address_bytes_ && !facts_.same_process;
}

double HostPricing::message_seconds() const noexcept {
  const MachineConstants& machine = context_.machine;
  return context_.ranks_per_core *
         (context_.network ? machine.network_message / 2 : machine.chunk_cost);
}

void HostPricing::set_chunks(Choice& choice) const {
  choice.chunk_bytes = facts_.chunk_bytes;
  choice.address_bytes = address_bytes_;
  choice.address_chunk_bytes = facts_.all_by_address ? std::size_t{1} << 20U : 0;
  choice.share_bytes = static_cast<std::size_t>(context_.share_bytes);
  if (context_.ranks_per_core > 1) {
    choice.common_slot_bytes = kLeastCommonSlot;
    choice.sender_common_slot_bytes = kNever;
  }
}

Choice HostPricing::message(std::size_t /*bytes*/) const {
  Choice choice;
  choice.algorithm = "message";
  set_chunks(choice);
  return choice;
}

double HostPricing::least(const Candidate& candidate, std::size_t unit_bytes) const {
  if (candidate.nics != nullptr) {
    // With other chunks it may be that much less.
    return kWorthCutting * priced(candidate, unit_bytes, candidate.nics->least()).predicted_seconds;
  }
  return candidate.cost == nullptr ? 0 : candidate.cost->least(static_cast<double>(unit_bytes));
}

Choice HostPricing::price(const Candidate& candidate, std::size_t unit_bytes) const {
  return priced(candidate, unit_bytes,
                candidate.nics == nullptr ? NicRounds() : candidate.nics->rounds());
}

Choice HostPricing::priced(const Candidate& candidate, std::size_t unit_bytes,
                           const NicRounds& nics) const {
  const ScheduleShape& shape = candidate.shape;
  Choice choice;
  choice.algorithm = candidate.algorithm;
  choice.nic_rule = candidate.nic_rule;
  choice.channels = candidate.channels;
  choice.routed = candidate.routed;
  set_chunks(choice);
  if (candidate.cost != nullptr) {
    choice.algbw_gbps = candidate.cost->algbw();
    choice.limiting_links = candidate.cost->limiting_links();
  }
  CostContext context = context_;
  context.nics = nics;
  const auto seconds_of = [&](std::size_t chunk, bool by_address) {
    if (candidate.cost == nullptr) return predict(shape, context, unit_bytes, chunk, by_address);
    return candidate.cost->predict(static_cast<double>(unit_bytes), static_cast<double>(chunk));
  };
  // The walks of a machine's links cover sizes within a factor of four.
  const std::size_t step = candidate.cost == nullptr ? 2 : 4;
  // Staged: a chunk fits a slot; smaller ones fill a long chain sooner.
  double staged = std::numeric_limits<double>::infinity();
  const std::size_t least = shape.longest_path > 1 ? kLeastHostChunk : kLeastHostChunkOverOneHop;
  const bool lags = candidate.cost != nullptr && facts_.lag_slots > 0;
  const double worth = lags ? kWorthCuttingLags : kWorthCutting;
  const std::size_t part = unit_bytes / static_cast<std::size_t>(shape.parts * shape.channels);
  const bool long_chunks = candidate.cost != nullptr || part >= kManyChunks * facts_.slot_bytes;
  const std::size_t longest = long_chunks ? facts_.slot_bytes : facts_.chunk_bytes;
  for (std::size_t chunk = longest; chunk >= least || chunk == longest; chunk /= step) {
    const double seconds = seconds_of(chunk, false);
    if (seconds < staged * worth) {
      staged = seconds;
      choice.chunk_bytes = chunk;
    }
  }
  choice.predicted_seconds = staged;
  const bool without_trial = has_one_receiver(shape) && part >= kShortByAddress;
  const bool waits = root_waits(shape, unit_bytes) && !without_trial;
  const CopyForm in_slots{choice.chunk_bytes, kNever, 0};
  if (!facts_.all_by_address || !shape.by_address || part < address_bytes_) {
    choice.address_chunk_bytes = 0;
    if (waits || !address_pays(choice.chunk_bytes)) choice.address_bytes = kNever;
    return choice;
  }
  CopyForm given{choice.chunk_bytes, address_bytes_, 0};
  double by_address = std::numeric_limits<double>::infinity();
  for (std::size_t chunk = std::size_t{4} << 20U; chunk >= address_bytes_ && chunk >= 4096;
       chunk /= step) {
    const double seconds = seconds_of(chunk, true);
    if (seconds < by_address * kWorthCutting) {
      by_address = seconds;
      given.address_chunk_bytes = chunk;
    }
  }
  const bool passed_on = shape.longest_path > 1 && shape.all.combined_in == 0 &&
                         !given_address_bytes_ && !facts_.same_process;
  const double worth_giving = without_trial ? kWithoutTrial
                              : passed_on   ? std::min(worth_of(part), kSoonerPassedOn)
                                            : worth_of(part);
  const bool gives = !waits && by_address < staged * worth_giving;
  choice.other_seconds = gives ? staged : by_address;
  // What is taken without a trial competes with other algorithms as the sooner form does.
  if (gives) choice.predicted_seconds = without_trial ? std::min(by_address, staged) : by_address;
  static_cast<CopyForm&>(choice) = gives ? given : in_slots;
  if (adapts_) choice.other = gives ? in_slots : given;
  return choice;
}

}  // namespace ropewalk::tune
