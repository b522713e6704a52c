// What diagnostics.h tries: the paths between GPUs, and every path of the machine.
#include "capi/guard.h"
#include "diagnose/peer_matrix.h"
#include "diagnose/probe/probe.h"
#include "ropewalk/diagnostics.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwMeasurePeers(size_t bytes, int repetitions, char** json) {
  return guarded("rwMeasurePeers", [&] {
    checked(json, "json");
    *json = duplicate(diagnose::measure_peers(bytes, repetitions));
  });
}

RW_API rwResult_t rwProbe(const char* request, char** json) {
  return guarded("rwProbe", [&] {
    checked(json, "json");
    *json = duplicate(diagnose::probe::run(&checked(request, "request")));
  });
}

}  // extern "C"
