#include "comm/measure.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <span>
#include <vector>

#include "comm/measure_site.h"
#include "core/error.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"

namespace ropewalk::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kMaxUnalign = std::size_t{1} << 20;

struct Buffers {
  std::byte* output = nullptr;  // in place: the larger of both
  std::byte* input_at = nullptr;
  std::byte* output_at = nullptr;
};

std::size_t input_bytes(const MeasureSpec& spec, int root, int rank, int num_ranks) {
  return spec.count * size_of(spec.type) *
         static_cast<std::size_t>(schedule::input_units(spec.collective, num_ranks, root, rank));
}

std::size_t output_bytes(const MeasureSpec& spec, int root, int rank, int num_ranks) {
  return spec.count * size_of(spec.type) *
         static_cast<std::size_t>(schedule::output_units(spec.collective, num_ranks, root, rank));
}

schedule::TestPattern pattern_of(const MeasureSpec& spec, int num_ranks, int root) {
  return {spec.collective, spec.type, spec.op, num_ranks, root, spec.count};
}

Buffers make_buffers(MeasureSite& site, const MeasureSpec& spec, int rank, int num_ranks) {
  const std::size_t unit = spec.count * size_of(spec.type);
  // With changing roots every rank needs room for the largest part.
  const auto most = [&](auto&& units_of) {
    int units = 0;
    for (int root = 0; root < num_ranks; ++root) {
      if (spec.root >= 0 && root != spec.root) continue;
      units = std::max(units, units_of(spec.collective, num_ranks, root, rank));
    }
    return unit * static_cast<std::size_t>(units);
  };
  Buffers buffers;
  const std::size_t inputs = most(schedule::input_units);
  const std::size_t outputs = most(schedule::output_units);
  const std::size_t offset = spec.unalign * size_of(spec.type);
  if (!spec.in_place) {
    buffers.input_at = site.take(inputs, offset);
    buffers.output_at = buffers.output = site.take(outputs, offset);
    return buffers;
  }
  buffers.output = site.take(std::max(inputs, outputs), offset);
  buffers.input_at = buffers.output_at = buffers.output;
  return buffers;
}

// In place, the smaller of input and output lies at the rank's own place in the larger.
void place_in(Buffers& buffers, const MeasureSpec& spec, int root, int rank, int num_ranks) {
  if (!spec.in_place) return;
  const std::size_t unit = spec.count * size_of(spec.type);
  std::byte* whole = buffers.output;
  buffers.input_at = buffers.output_at = whole;
  const int offset = *schedule::in_place_input_offset(spec.collective, rank);
  const int inputs = schedule::input_units(spec.collective, num_ranks, root, rank);
  const int outputs = schedule::output_units(spec.collective, num_ranks, root, rank);
  if (outputs > inputs && outputs == num_ranks) {
    buffers.input_at = whole + unit * static_cast<std::size_t>(std::max(0, offset));
  } else if (inputs > outputs && inputs == num_ranks) {
    buffers.output_at = whole + unit * static_cast<std::size_t>(std::max(0, -offset));
  }
}

// Seconds per operation of this rank. Fills `each` where the spec wants it.
double timed_iterations(Communicator& comm, MeasureSite& site, const MeasureSpec& spec,
                        const auto& run_iteration, std::vector<double>& each) {
  const auto per_operation = [&](Clock::duration time) {
    return std::chrono::duration<double>(time).count() / spec.operations;
  };
  const bool apart = spec.barrier == MeasureBarrier::kIteration;
  if (spec.per_iteration) each.reserve(static_cast<std::size_t>(spec.iterations));
  comm.barrier();
  Clock::duration counted{};
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < spec.iterations; ++i) {
    run_iteration();
    if (!apart && !spec.per_iteration && i + 1 < spec.iterations) continue;
    site.finish();
    const Clock::time_point end = Clock::now();
    counted += end - begin;
    if (spec.per_iteration) each.push_back(per_operation(end - begin));
    begin = end;
    if (apart) {
      comm.barrier();
      begin = Clock::now();
    }
  }
  return per_operation(counted) / spec.iterations;
}

// The same by launches of a graph that holds all iterations.
double timed_graphs(Communicator& comm, MeasureSite& site, const MeasureSpec& spec,
                    const auto& run_iteration) {
  site.capture([&] {
    for (int i = 0; i < spec.iterations; ++i) run_iteration();
  });
  site.replay();  // the first launch of a graph is no measure of the others
  site.finish();
  comm.barrier();
  Clock::duration counted{};
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < spec.graphs; ++i) {
    site.replay();
    const bool waits = spec.barrier != MeasureBarrier::kNone;
    if (!waits && i + 1 < spec.graphs) continue;
    site.finish();
    if (spec.barrier == MeasureBarrier::kOperation) comm.barrier();
    counted += Clock::now() - begin;
    if (spec.barrier == MeasureBarrier::kIteration) comm.barrier();
    begin = Clock::now();
  }
  return std::chrono::duration<double>(counted).count() / spec.graphs / spec.iterations /
         spec.operations;
}

}  // namespace

MeasureResult measure(Communicator& comm, const MeasureSpec& spec) {
  const int rank = comm.rank();
  const int n = comm.size();
  if (spec.in_place && !schedule::in_place_input_offset(spec.collective, rank).has_value()) {
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
  if (spec.root < -1 || spec.root >= n) {
    throw Error(Errc::kInvalidArgument, "root: {} is outside -1 to {}", spec.root, n - 1);
  }
  if (spec.graphs < 0 || (spec.graphs > 0 && spec.per_iteration)) {
    throw Error(
        Errc::kInvalidArgument,
        "graphs: {} must not be negative; and in a graph iterations have no times of their own",
        spec.graphs);
  }
  const std::unique_ptr<MeasureSite> site = spec.on_device ? device_site(comm) : host_site(comm);
  Buffers buffers = make_buffers(*site, spec, rank, n);
  if (spec.registered) site->register_buffers();
  const auto call_with = [&](int root) {
    place_in(buffers, spec, root, rank, n);
    CollectiveCall call;
    call.collective = spec.collective;
    call.input = buffers.input_at;
    call.output = buffers.output_at;
    call.count = spec.count;
    call.type = spec.type;
    call.op = spec.op;
    call.root = root;
    call.scalar = pattern_of(spec, n, root).scalar(rank);
    return call;
  };
  const int first_root = std::max(0, spec.root);
  const auto root_of = [&](int iteration) {
    return spec.root >= 0 || !has_root(spec.collective) ? first_root : iteration % n;
  };

  const auto fill = [&](int root) {
    std::vector<std::byte> input(input_bytes(spec, root, rank, n));
    pattern_of(spec, n, root).fill_input(rank, input.data());
    site->write(buffers.input_at, input);
  };
  std::vector<CollectiveCall> calls;
  for (int root = 0; root < (spec.root < 0 && has_root(spec.collective) ? n : 1); ++root) {
    calls.push_back(call_with(root_of(root)));
  }
  // Small integers also while timing: denormals and infinities would slow the arithmetic down.
  call_with(first_root);
  fill(first_root);
  std::size_t next = 0;
  const auto run_iteration = [&] {
    for (int i = 0; i < spec.operations; ++i) {
      site->run(calls[next]);
      if (++next == calls.size()) next = 0;
      if (spec.barrier == MeasureBarrier::kOperation && spec.graphs == 0) {
        site->finish();
        comm.barrier();
      }
    }
  };
  for (int i = 0; i < spec.warmup; ++i) run_iteration();
  site->finish();
  MeasureResult result;
  const double seconds = spec.graphs > 0 ? timed_graphs(comm, *site, spec, run_iteration)
                                         : timed_iterations(comm, *site, spec, run_iteration,
                                                            result.iteration_seconds);

  std::uint64_t wrong = 0;
  for (int round = 0; round < spec.check; ++round) {
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const int root = root_of(static_cast<int>(k));
      const CollectiveCall call = call_with(root);
      std::vector<std::byte> output(output_bytes(spec, root, rank, n), std::byte{0x5a});
      if (!spec.in_place) site->write(buffers.output_at, output);
      fill(root);
      site->run(call);
      site->finish();
      site->read(output, buffers.output_at);
      wrong += pattern_of(spec, n, root).count_wrong(rank, output.data());
    }
  }

  struct Report {
    double seconds;
    std::uint64_t wrong;
  };
  std::vector<Report> reports(static_cast<std::size_t>(n));
  reports[static_cast<std::size_t>(rank)] = {seconds, wrong};
  comm.exchange(std::as_writable_bytes(std::span(reports)), sizeof(Report));
  result.seconds_rank0 = result.seconds_min = reports.front().seconds;
  for (const Report& report : reports) {
    result.seconds_avg += report.seconds / n;
    result.seconds_min = std::min(result.seconds_min, report.seconds);
    result.seconds_max = std::max(result.seconds_max, report.seconds);
    result.wrong += report.wrong;
  }
  result.algorithm = site->algorithm_of(calls.front());
  return result;
}

}  // namespace ropewalk::comm
