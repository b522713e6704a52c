// What needs no communicator: simulation, and the choice of NICs.
#include <string>

#include "capi/guard.h"
#include "plan/nic_report.h"
#include "plan/nic_request.h"
#include "schedule/fair_share.h"
#include "schedule/simulation_request.h"
#include "topology/json.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwSimulate(const char* request, char** report) {
  return guarded("rwSimulate", [&] {
    checked(report, "report");
    *report =
        duplicate(schedule::simulate(schedule::simulation_request(&checked(request, "request")),
                                     "builtin", schedule::make_fair_share_engine));
  });
}

RW_API rwResult_t rwNicReport(const char* topology, const char* request, char** report) {
  return guarded("rwNicReport", [&] {
    checked(report, "report");
    const topology::Topology machine =
        topology::read_json(&checked(topology, "topology"), "topology");
    *report = duplicate(
        plan::nic_report(machine, plan::nic_report_request(&checked(request, "request"))));
  });
}

}  // extern "C"
