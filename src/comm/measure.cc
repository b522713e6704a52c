#include "comm/measure.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <new>
#include <span>

#include "core/error.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"

namespace ropewalk::comm {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxUnalign = std::size_t{1} << 20;

// Memory that begins `offset` bytes after the start of a page, every page touched.
class Buffer {
 public:
  Buffer(std::size_t bytes, std::size_t offset)
      : offset_(offset),
        data_(static_cast<std::byte*>(::operator new (std::max<std::size_t>(offset + bytes, 1),
                                                      std::align_val_t{kPageBytes}))) {
    std::memset(data_.get(), 0x5a, offset + bytes);
  }
  [[nodiscard]] std::byte* data() const noexcept { return data_.get() + offset_; }

 private:
  struct Free {
    void operator()(std::byte* data) const noexcept {
      ::operator delete (data, std::align_val_t{kPageBytes});
    }
  };
  std::size_t offset_;
  std::unique_ptr<std::byte, Free> data_;
};

struct Buffers {
  std::unique_ptr<Buffer> output;
  std::unique_ptr<Buffer> input;  // null in place
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
  std::byte* input_at = nullptr;
  std::byte* output_at = nullptr;
};

Buffers make_buffers(const MeasureSpec& spec, int rank, int num_ranks) {
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
  buffers.input_bytes = most(schedule::input_units);
  buffers.output_bytes = most(schedule::output_units);
  const std::size_t offset = spec.unalign * size_of(spec.type);
  if (!spec.in_place) {
    buffers.input = std::make_unique<Buffer>(buffers.input_bytes, offset);
    buffers.output = std::make_unique<Buffer>(buffers.output_bytes, offset);
    buffers.input_at = buffers.input->data();
    buffers.output_at = buffers.output->data();
    return buffers;
  }
  buffers.output =
      std::make_unique<Buffer>(std::max(buffers.input_bytes, buffers.output_bytes), offset);
  buffers.input_at = buffers.output_at = buffers.output->data();
  return buffers;
}

// In place, the smaller of input and output lies at the rank's own place in the larger.
void place_in(Buffers& buffers, const MeasureSpec& spec, int root, int rank, int num_ranks) {
  if (!spec.in_place) return;
  const std::size_t unit = spec.count * size_of(spec.type);
  std::byte* whole = buffers.output->data();
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
double timed_iterations(Communicator& comm, const MeasureSpec& spec, const auto& run_iteration,
                        std::vector<double>& each) {
  const auto per_operation = [&](Clock::duration time) {
    return std::chrono::duration<double>(time).count() / spec.operations;
  };
  const bool apart = spec.barrier == MeasureBarrier::kIteration;
  if (spec.per_iteration) each.reserve(static_cast<std::size_t>(spec.iterations));
  comm.barrier();
  Clock::duration counted{};
  Clock::time_point begin = Clock::now();
  for (int i = 0; i < spec.iterations; ++i) {
    run_iteration(i);
    if (!apart && !spec.per_iteration && i + 1 < spec.iterations) continue;
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
  Buffers buffers = make_buffers(spec, rank, n);
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
    call.scalar = schedule::TestPattern(spec.collective, spec.type, spec.op, n, root, spec.count)
                      .scalar(rank);
    return call;
  };
  const int first_root = std::max(0, spec.root);
  const auto root_of = [&](int iteration) {
    return spec.root >= 0 || !has_root(spec.collective) ? first_root : iteration % n;
  };

  // Small integers also while timing: denormals and infinities would slow the arithmetic down.
  schedule::TestPattern(spec.collective, spec.type, spec.op, n, first_root, spec.count)
      .fill_input(rank, call_with(first_root).input == nullptr ? nullptr : buffers.input_at);
  std::vector<CollectiveCall> calls;
  for (int root = 0; root < (spec.root < 0 && has_root(spec.collective) ? n : 1); ++root) {
    calls.push_back(call_with(root_of(root)));
  }
  const auto run_iteration = [&](int iteration) {
    for (int i = 0; i < spec.operations; ++i) {
      const int number = iteration * spec.operations + i;
      comm.run(calls[static_cast<std::size_t>(number) % calls.size()]);
      if (spec.barrier == MeasureBarrier::kOperation) comm.barrier();
    }
  };
  for (int i = 0; i < spec.warmup; ++i) run_iteration(i);
  MeasureResult result;
  const double seconds = timed_iterations(comm, spec, run_iteration, result.iteration_seconds);

  std::uint64_t wrong = 0;
  for (int round = 0; round < spec.check; ++round) {
    for (std::size_t k = 0; k < calls.size(); ++k) {
      const int root = root_of(static_cast<int>(k));
      const schedule::TestPattern pattern(spec.collective, spec.type, spec.op, n, root, spec.count);
      const CollectiveCall call = call_with(root);
      if (!spec.in_place) std::memset(buffers.output->data(), 0x5a, buffers.output_bytes);
      pattern.fill_input(rank, buffers.input_at);
      comm.run(call);
      wrong += pattern.count_wrong(rank, buffers.output_at);
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
  result.algorithm = comm.algorithm_of(calls.front());
  return result;
}

}  // namespace ropewalk::comm
