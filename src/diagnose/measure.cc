#include "diagnose/measure.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <set>
#include <vector>

#include "core/error.h"
#include "diagnose/driven_ranks.h"
#include "diagnose/repeated_memory.h"
#include "schedule/layout.h"

namespace ropewalk::diagnose {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxUnalign = std::size_t{1} << 20;
constexpr std::size_t kMaxRegion = std::size_t{1} << 40;

void validate(std::span<comm::Communicator* const> comms) {
  if (comms.empty()) throw Error(Errc::kInvalidArgument, "there is no communicator to measure");
  std::set<int> ranks;
  for (comm::Communicator* comm : comms) {
    if (comm->size() != comms.front()->size() || !ranks.insert(comm->rank()).second) {
      throw Error(Errc::kInvalidArgument,
                  "rank {} of {} cannot be measured together with rank {} of {}: they are to be "
                  "different ranks of one communicator",
                  comm->rank(), comm->size(), comms.front()->rank(), comms.front()->size());
    }
  }
}

void validate(const MeasureSpec& spec, int num_ranks) {
  if (spec.in_place && !schedule::in_place_input_offset(spec.collective, 0).has_value()) {
    throw Error(Errc::kInvalidArgument, "{} has no in-place form", name(spec.collective));
  }
  if (spec.iterations < 1 || spec.operations < 1 || spec.warmup < 0) {
    throw Error(Errc::kInvalidArgument,
                "iterations: {}, operations: {} and warmup: {} must be positive", spec.iterations,
                spec.operations, spec.warmup);
  }
  if (spec.unalign > kMaxUnalign) {
    throw Error(Errc::kInvalidArgument, "unalign: {} is more than {} elements", spec.unalign,
                kMaxUnalign);
  }
  if (spec.region > kMaxRegion) {
    throw Error(Errc::kInvalidArgument, "region: {} is more than {} bytes", spec.region,
                kMaxRegion);
  }
  if (spec.period > 0) {
    const bool one_unit = spec.collective == Collective::kAllReduce ||
                          spec.collective == Collective::kBroadcast ||
                          spec.collective == Collective::kReduce;
    if (!one_unit || spec.in_place || spec.on_device || spec.unalign > 0 || spec.root < 0) {
      throw Error(Errc::kInvalidArgument,
                  "period: is for all_reduce, broadcast and reduce on host memory, out of place, "
                  "with one root and buffers that begin with a page");
    }
    if (spec.period % RepeatedMemory::kGranularity != 0) {
      throw Error(Errc::kInvalidArgument, "period: {} is no multiple of {} bytes", spec.period,
                  RepeatedMemory::kGranularity);
    }
  }
  if (spec.root < -1 || spec.root >= num_ranks) {
    throw Error(Errc::kInvalidArgument, "root: {} is outside -1 to {}", spec.root, num_ranks - 1);
  }
  if (spec.graphs < 0 || (spec.graphs > 0 && spec.per_iteration)) {
    throw Error(
        Errc::kInvalidArgument,
        "graphs: {} must not be negative; and in a graph iterations have no times of their own",
        spec.graphs);
  }
}

// Seconds per operation of these ranks. Fills `each` where the spec wants it.
double timed_iterations(DrivenRanks& ranks, const MeasureSpec& spec, const auto& run_iteration,
                        std::vector<double>& each) {
  const auto per_operation = [&](Clock::duration time) {
    return std::chrono::duration<double>(time).count() / spec.operations;
  };
  const bool apart = spec.barrier == MeasureBarrier::kIteration;
  if (spec.per_iteration) each.reserve(static_cast<std::size_t>(spec.iterations));
  ranks.barrier();
  Clock::duration counted{};
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < spec.iterations; ++i) {
    run_iteration();
    if (!apart && !spec.per_iteration && i + 1 < spec.iterations) continue;
    ranks.finish();
    const Clock::time_point end = Clock::now();
    counted += end - begin;
    if (spec.per_iteration) each.push_back(per_operation(end - begin));
    begin = end;
    if (apart) {
      ranks.barrier();
      begin = Clock::now();
    }
  }
  return per_operation(counted) / spec.iterations;
}

// The same by launches of a graph that holds all iterations.
double timed_graphs(DrivenRanks& ranks, const MeasureSpec& spec, const auto& run_iteration) {
  ranks.capture([&] {
    for (int i = 0; i < spec.iterations; ++i) run_iteration();
  });
  ranks.replay();  // the first launch of a graph is no measure of the others
  ranks.finish();
  ranks.barrier();
  Clock::duration counted{};
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < spec.graphs; ++i) {
    ranks.replay();
    const bool waits = spec.barrier != MeasureBarrier::kNone;
    if (!waits && i + 1 < spec.graphs) continue;
    ranks.finish();
    if (spec.barrier == MeasureBarrier::kOperation) ranks.barrier();
    counted += Clock::now() - begin;
    if (spec.barrier == MeasureBarrier::kIteration) ranks.barrier();
    begin = Clock::now();
  }
  return std::chrono::duration<double>(counted).count() / spec.graphs / spec.iterations /
         spec.operations;
}

// Wrong elements of each of these ranks, over all rounds.
std::vector<std::uint64_t> verify(DrivenRanks& ranks, const MeasureSpec& spec) {
  std::vector<std::uint64_t> wrong(ranks.all().size());
  for (int round = 0; round < spec.check; ++round) {
    for (std::size_t turn = 0; turn < ranks.first().turns(); ++turn) {
      for (const auto& rank : ranks.all()) {
        if (!spec.in_place) rank->spoil(turn);
        rank->fill(turn);
      }
      ranks.run(turn);
      ranks.finish();
      for (std::size_t i = 0; i < wrong.size(); ++i) wrong[i] += ranks.all()[i]->count_wrong(turn);
    }
  }
  return wrong;
}

}  // namespace

MeasureResult measure(comm::Communicator& comm, const MeasureSpec& spec) {
  return measure(std::array{&comm}, spec);
}

MeasureResult measure(std::span<comm::Communicator* const> comms, const MeasureSpec& spec) {
  validate(comms);
  const int n = comms.front()->size();
  validate(spec, n);
  DrivenRanks ranks(comms);
  ranks.prepare(spec);
  // Small integers also while timing: denormals and infinities would slow the arithmetic down.
  for (const auto& rank : ranks.all()) rank->fill_all();
  std::size_t next = 0;
  const auto run_iteration = [&] {
    for (int i = 0; i < spec.operations; ++i) {
      ranks.run(next);
      ranks.advance();
      if (++next == ranks.first().turns()) next = 0;
      if (spec.barrier == MeasureBarrier::kOperation && spec.graphs == 0) {
        ranks.finish();
        ranks.barrier();
      }
    }
  };
  for (int i = 0; i < spec.warmup; ++i) run_iteration();
  ranks.finish();
  MeasureResult result;
  const double seconds =
      spec.graphs > 0 ? timed_graphs(ranks, spec, run_iteration)
                      : timed_iterations(ranks, spec, run_iteration, result.iteration_seconds);
  const std::vector<std::uint64_t> wrong = verify(ranks, spec);

  struct Report {
    double seconds;
    std::uint64_t wrong;
  };
  std::vector<std::vector<Report>> reports(comms.size());
  ranks.at_once([&](std::size_t i) {
    reports[i].resize(static_cast<std::size_t>(n));
    reports[i][static_cast<std::size_t>(comms[i]->rank())] = {seconds, wrong[i]};
    comms[i]->exchange(std::as_writable_bytes(std::span(reports[i])), sizeof(Report));
  });
  ranks.leave();
  result.seconds_rank0 = result.seconds_min = reports.front().front().seconds;
  for (const Report& report : reports.front()) {
    result.seconds_avg += report.seconds / n;
    result.seconds_min = std::min(result.seconds_min, report.seconds);
    result.seconds_max = std::max(result.seconds_max, report.seconds);
    result.wrong += report.wrong;
  }
  result.algorithm = ranks.first().site().algorithm_of(ranks.first().call(0));
  return result;
}

}  // namespace ropewalk::diagnose
