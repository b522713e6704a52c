#include "comm/cuda/prepared_launch.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "comm/scaling.h"
#include "core/error.h"
#include "executor/block/pack.h"
#include "executor/cuda/kernel.h"
#include "executor/program.h"
#include "schedule/lags.h"

namespace ropewalk::comm {
namespace {

using executor::Protocol;

std::size_t divided_up(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

DevicePrograms& LaunchMaker::programs(const tune::Choice& choice) {
  const bool flagged = choice.protocol != Protocol::kSimple;
  const int channels = choice.schedule->schedule().num_channels();
  const int hybrid_channels = tune::hybrid_channels_of(choice.routed);
  DevicePrograms& entry = programs_[{choice.schedule.get(), choice.protocol}];
  if (entry.checked != nullptr) return entry;
  const schedule::Checked& checked = *choice.schedule;
  std::vector<executor::Program> programs;
  for (int c = 0; c < channels; ++c) {
    programs.push_back(
        executor::make_program(checked.schedule(), checked.report(), options_.rank, c));
    std::ranges::copy(executor::parts_sent(programs.back()), std::back_inserter(entry.sent));
    if (flagged) continue;
    const auto lags = schedule::find_lags(checked.schedule(), c, links_.lag_slots());
    executor::set_lags(programs.back(), lags[static_cast<std::size_t>(options_.rank)]);
  }
  link::DeviceEnds ends(links_, choice.protocol, channels - hybrid_channels);
  const executor::PackedPrograms packed =
      flagged ? executor::pack_flagged(programs, ends) : executor::pack(programs, ends);
  entry.memory = blocks_.copy(packed.bytes);
  entry.program_bytes = packed.stride;
  entry.room = packed.room;
  entry.max_chunks = packed.max_chunks;
  entry.given = choice.algorithm == tune::kGivenSchedule;
  entry.checked = choice.schedule;
  return entry;
}

void LaunchMaker::forget_given() {
  std::erase_if(programs_, [](const auto& entry) { return entry.second.given; });
}

// Which elements each channel has, and how many of them a round moves.
void LaunchMaker::cut(PreparedLaunch& launch, const DevicePrograms& programs) {
  const tune::Choice& choice = launch.choice();
  const schedule::Schedule& schedule = programs.checked->schedule();
  executor::LaunchArgs& args = launch.args;
  const executor::Call& walker = args.call;
  const std::size_t granule =
      std::max<std::size_t>(1, executor::kShareGranule / walker.element_bytes);
  const int channels = schedule.num_channels();
  RW_ASSERT(channels <= static_cast<int>(executor::kMaxBlocks));
  const executor::ChannelCut parts = executor::cut_channels(schedule, walker.count, granule);
  args.share = parts.share;
  args.part_length = parts.part_length;
  launch.blocks = static_cast<unsigned>(channels);
  if (parts.begins.empty()) {
    launch.blocks =
        std::min(launch.blocks, static_cast<unsigned>(divided_up(walker.count, args.share)));
  } else {
    launch.begins = blocks_.copy(parts.begins);
    args.begins = reinterpret_cast<const std::uint64_t*>(launch.begins->data());
  }
  args.chunk_length = std::max<std::size_t>(1, choice.chunk_bytes / walker.element_bytes);
  if (choice.protocol != Protocol::kSimple) {
    // Rounds of one size, each a whole number of what the protocol moves at once.
    const std::size_t rounds = divided_up(args.part_length, args.chunk_length);
    const std::size_t at_once = choice.protocol == Protocol::kLl ? 8 : 8 * executor::kLineWords;
    const std::size_t chunk_bytes =
        divided_up(divided_up(args.part_length, rounds) * walker.element_bytes, at_once) * at_once;
    args.chunk_length = std::min(args.chunk_length, chunk_bytes / walker.element_bytes);
    args.chunk_stride = static_cast<std::uint32_t>(executor::flagged_bytes(
        choice.protocol, divided_up(args.chunk_length * walker.element_bytes, at_once) * at_once));
    args.slot_stride = static_cast<std::uint32_t>(
        executor::flagged_bytes(choice.protocol, links_.slot_bytes(choice.protocol)));
    RW_ASSERT(args.chunk_stride * programs.max_chunks <= args.slot_stride);
  }
  args.rounds = static_cast<std::uint32_t>(divided_up(args.part_length, args.chunk_length));
  count(launch, programs, parts);
}

// Senders to a root run ahead, so that it waits for nobody; and several lines of ll128 are loaded
// at once as it is.
bool LaunchMaker::waits_together(const PreparedLaunch& launch, const DevicePrograms& programs) {
  const tune::Choice& choice = launch.choice();
  if (choice.protocol == Protocol::kSimple) return false;
  if (has_root(programs.checked->schedule().collective)) return false;
  if (programs.room.max_sources <= executor::kFewSources) return false;
  if (choice.protocol == Protocol::kLl) return true;
  const executor::LaunchArgs& args = launch.args;
  const std::size_t lines = divided_up(args.chunk_length * args.call.element_bytes,
                                       std::size_t{8} * executor::kLineWords);
  return 8 * lines <= static_cast<std::size_t>(choice.threads);
}

void LaunchMaker::count(PreparedLaunch& launch, const DevicePrograms& programs,
                        const executor::ChannelCut& parts) {
  std::map<int, std::size_t> bytes;
  for (const executor::PartSent& sent : programs.sent) {
    const std::size_t elements = parts.elements(sent.channel, sent.part);
    if (elements > 0) bytes[sent.peer] += elements * launch.args.call.element_bytes;
  }
  for (const auto& [peer, many] : bytes) launch.sent.push_back({peer, many});
}

std::unique_ptr<PreparedLaunch> LaunchMaker::make(const CollectiveCall& call, const Extent& extent,
                                                  std::shared_ptr<const tune::Choice> given) {
  auto launch = std::make_unique<PreparedLaunch>(call, extent, std::move(given));
  if (call.count == 0) return launch;  // never launched
  const tune::Choice& choice = launch->choice();
  const DevicePrograms& programs = this->programs(choice);
  launch->in_place_works = programs.checked->report().in_place;
  launch->programs = programs.memory;

  executor::LaunchArgs& args = launch->args;
  args.links = links_.others(0);
  const bool combines = reduces(call.collective);
  const Scaling scaling = scaling_of(call, options_.num_ranks);
  executor::Call& walker = args.call;
  // What is only moved is moved as bytes.
  walker.type = combines ? call.type : DataType::kUint8;
  walker.element_bytes = combines ? extent.element_bytes : 1;
  walker.count = combines ? call.count : call.count * extent.element_bytes;
  walker.op = call.op;
  walker.scaled = scaling.scaled;
  walker.scalar = scaling.scalar;
  walker.divisor = scaling.divisor;
  walker.check_tags = options_.check_tags;
  // Reads of another GPU's memory need all channels for a link's rate, of which some go through the
  // host's memory then.
  const bool both_classes = tune::hybrid_channels_of(choice.routed) > 0;
  launch->direct =
      choice.protocol == Protocol::kSimple && !both_classes &&
      (options_.direct_always || (options_.direct_rooted && has_root(call.collective)));
  walker.address_bytes = launch->direct ? kAddressBytes : ~std::size_t{0};
  cut(*launch, programs);
  args.program_bytes = programs.program_bytes;
  args.room = programs.room;
  args.programs = programs.memory->data();
  args.output_bytes = extent.output_bytes;
  args.waits_together = waits_together(*launch, programs);
  launch->kernels = executor::cuda_kernels(choice.protocol, call.type, call.op, combines);
  // A thread for each link.
  const unsigned least = (programs.room.max_ends + 31) / 32 * 32;
  launch->threads = executor::launch_threads(
      choice.protocol, std::max(static_cast<unsigned>(choice.threads), least));
  launch->shared_bytes = executor::shared_bytes(args, choice.protocol);
  return launch;
}

}  // namespace ropewalk::comm
