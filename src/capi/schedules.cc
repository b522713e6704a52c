// Schedules as text: making, checking, running the user's own.
#include <algorithm>
#include <memory>
#include <optional>

#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/explain.h"
#include "machine/emulation.h"
#include "schedule/check.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "schedule/describe.h"
#include "schedule/limits.h"
#include "schedule/text.h"
#include "tune/ring_search.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

Collective named_collective(const char* name) {
  const std::optional<Collective> found = parse_collective(&checked(name, "collective"));
  if (!found.has_value()) {
    throw Error(Errc::kInvalidArgument, "collective: unknown \"{}\"", name);
  }
  return *found;
}

// Of rwScheduleMakeOnHosts.
char* make_text(const char* collective, const char* algorithm, int nranks, int root, int channels,
                const int* host_of_rank) {
  schedule::Request request{named_collective(collective), nranks, root, channels};
  if (host_of_rank != nullptr && nranks > 0 && nranks <= schedule::kMaxRanks) {
    request.host_of_rank.assign(host_of_rank, host_of_rank + nranks);
    // Those that compile() refuses have no order.
    const auto is_host = [&](int host) { return host >= 0 && host < nranks; };
    if (std::ranges::all_of(request.host_of_rank, is_host)) {
      request.order = tune::ring_avoiding({}, nranks, request.host_of_rank);
    }
  }
  return duplicate(schedule::print(schedule::compile(&checked(algorithm, "algorithm"), request)));
}

}  // namespace

extern "C" {

RW_API rwResult_t rwScheduleMake(const char* collective, const char* algorithm, int nranks,
                                 int root, int channels, char** text) {
  return guarded("rwScheduleMake", [&] {
    checked(text, "text");
    *text = make_text(collective, algorithm, nranks, root, channels, nullptr);
  });
}

RW_API rwResult_t rwScheduleMakeOnHosts(const char* collective, const char* algorithm, int nranks,
                                        int root, int channels, const int* host_of_rank,
                                        char** text) {
  return guarded("rwScheduleMakeOnHosts", [&] {
    checked(text, "text");
    *text = make_text(collective, algorithm, nranks, root, channels, host_of_rank);
  });
}

RW_API rwResult_t rwScheduleCheck(const char* text, char** report) {
  return guarded("rwScheduleCheck", [&] {
    checked(report, "report");
    const schedule::Schedule parsed = schedule::parse(&checked(text, "text"));
    *report = duplicate(schedule::describe(parsed, schedule::check(parsed)));
  });
}

RW_API rwResult_t rwScheduleAlgorithms(char** json) {
  return guarded("rwScheduleAlgorithms", [&] {
    checked(json, "json");
    *json = duplicate(schedule::describe_algorithms());
  });
}

RW_API rwResult_t rwCommUseSchedule(rwComm_t comm, const char* text) {
  return guarded("rwCommUseSchedule", [&] {
    comm::Communicator& target = *checked(comm, "comm").comm;
    if (text == nullptr) {
      target.forget_schedules();
      return;
    }
    target.use_schedule(
        std::make_shared<const schedule::Checked>(schedule::Checked::from(schedule::parse(text))));
  });
}

RW_API rwResult_t rwCommExplain(rwComm_t comm, const char* collective, size_t bytes, int root,
                                char** json) {
  return guarded("rwCommExplain", [&] {
    comm::Communicator& target = *checked(comm, "comm").comm;
    checked(json, "json");
    const Collective wanted = named_collective(collective);
    *json = duplicate(comm::explain(target, wanted, bytes, root));
  });
}

RW_API rwResult_t rwCommEmulation(rwComm_t comm, char** json) {
  return guarded("rwCommEmulation", [&] {
    const comm::Communicator& target = *checked(comm, "comm").comm;
    checked(json, "json");
    const machine::Emulation* emulation = target.emulation();
    *json = duplicate(emulation == nullptr ? "null" : machine::describe(*emulation));
  });
}

}  // extern "C"
