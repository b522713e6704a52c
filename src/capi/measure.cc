// The timed loop.
#include "diagnose/measure.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "capi/guard.h"
#include "capi/handles.h"
#include "ropewalk/diagnostics.h"

namespace ropewalk::capi {
namespace {

diagnose::MeasureSpec from_c(const rwMeasureSpec_t& spec) {
  if (spec.size < offsetof(rwMeasureSpec_t, region)) {
    throw Error(Errc::kInvalidArgument, "spec.size: {} is too small", spec.size);
  }
  // Of a caller that knows fewer fields, the others are 0.
  rwMeasureSpec_t given{};
  std::memcpy(&given, &spec, std::min(spec.size, sizeof given));
  diagnose::MeasureSpec wanted;
  const std::optional<Collective> collective =
      parse_collective(&checked(given.collective, "spec.collective"));
  if (!collective.has_value()) {
    throw Error(Errc::kInvalidArgument, "spec.collective: unknown \"{}\"", given.collective);
  }
  const auto type = static_cast<int>(given.type);
  const auto op = static_cast<int>(given.op);
  if (type < 0 || type >= kNumDataTypes) {
    throw Error(Errc::kInvalidArgument, "spec.type: {} is not a data type", type);
  }
  if (op < 0 || op >= kNumRedOps) {
    throw Error(Errc::kInvalidArgument, "spec.op: {} is not an operator", op);
  }
  wanted.collective = *collective;
  wanted.count = given.count;
  wanted.type = static_cast<DataType>(type);
  wanted.op = static_cast<RedOp>(op);
  wanted.root = given.root;
  wanted.in_place = given.in_place != 0;
  wanted.warmup = given.warmup;
  wanted.iterations = given.iterations;
  wanted.operations = given.operations == 0 ? 1 : given.operations;
  wanted.check = given.check;
  wanted.unalign = given.unalign;
  wanted.per_iteration = given.iteration_seconds != nullptr;
  switch (given.barrier) {
    case 0: wanted.barrier = diagnose::MeasureBarrier::kNone; break;
    case 1: wanted.barrier = diagnose::MeasureBarrier::kOperation; break;
    case 3: wanted.barrier = diagnose::MeasureBarrier::kIteration; break;
    default:
      throw Error(Errc::kInvalidArgument, "spec.barrier: {} is not one of 0, 1 and 3",
                  given.barrier);
  }
  wanted.on_device = given.device != 0;
  wanted.graphs = given.graphs;
  wanted.registered = given.registered != 0;
  wanted.region = given.region;
  wanted.period = given.period;
  return wanted;
}

void measure_into(std::span<comm::Communicator* const> comms, const rwMeasureSpec_t* spec,
                  rwMeasureResult_t* result) {
  const rwMeasureSpec_t& given = checked(spec, "spec");
  checked(result, "result");
  const diagnose::MeasureResult measured = diagnose::measure(comms, from_c(given));
  rwMeasureResult_t out{};
  out.seconds_avg = measured.seconds_avg;
  out.seconds_min = measured.seconds_min;
  out.seconds_max = measured.seconds_max;
  out.seconds_rank0 = measured.seconds_rank0;
  out.wrong = measured.wrong;
  const std::size_t length = std::min(measured.algorithm.size(), sizeof out.algorithm - 1);
  std::copy_n(measured.algorithm.begin(), length, static_cast<char*>(out.algorithm));
  std::copy(measured.iteration_seconds.begin(), measured.iteration_seconds.end(),
            given.iteration_seconds);
  *result = out;
}

}  // namespace
}  // namespace ropewalk::capi

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwMeasure(rwComm_t comm, const rwMeasureSpec_t* spec, rwMeasureResult_t* result) {
  return guarded("rwMeasure",
                 [&] { measure_into(std::array{checked(comm, "comm").comm.get()}, spec, result); });
}

RW_API rwResult_t rwMeasureGroup(const rwComm_t* comms, int ncomms, const rwMeasureSpec_t* spec,
                                 rwMeasureResult_t* result) {
  return guarded("rwMeasureGroup", [&] {
    checked(comms, "comms");
    if (ncomms < 1) throw Error(Errc::kInvalidArgument, "ncomms: {} is not positive", ncomms);
    std::vector<comm::Communicator*> driven;
    for (const rwComm_t each : std::span(comms, static_cast<std::size_t>(ncomms))) {
      driven.push_back(checked(each, "comms").comm.get());
    }
    measure_into(driven, spec, result);
  });
}

}  // extern "C"
