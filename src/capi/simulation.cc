// What diagnostics.h computes: simulation, and the choice of NICs.
#include <string>

#include "capi/guard.h"
#include "capi/planning_handles.h"
#include "plan/nic_report.h"
#include "plan/nic_request.h"
#include "ropewalk/diagnostics.h"
#include "schedule/checked.h"
#include "schedule/fair_share.h"
#include "schedule/microbench.h"
#include "schedule/simulation_request.h"
#include "schedule/text.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

schedule::SimulationEngine builtin() { return {"builtin", schedule::make_fair_share_engine}; }

}  // namespace

extern "C" {

RW_API rwResult_t rwSimulatePlan(rwPlan_t plan, const char* request, char** report) {
  return guarded("rwSimulatePlan", [&] {
    checked(report, "report");
    const rwPlan& given = with_trees(plan);
    const auto options = schedule::simulation_options(&checked(request, "request"));
    *report = duplicate(schedule::simulate(*given.machine, given.plan, options, builtin()));
  });
}

RW_API rwResult_t rwSimulateSchedule(const char* schedule, rwTopology_t topology,
                                     const char* request, char** report) {
  return guarded("rwSimulateSchedule", [&] {
    checked(report, "report");
    const topology::Topology& machine = machine_of(topology);
    const auto options = schedule::simulation_options(&checked(request, "request"));
    const auto checked_schedule =
        schedule::Checked::from(schedule::parse(&checked(schedule, "schedule")));
    *report = duplicate(schedule::simulate(machine, checked_schedule, options, builtin()));
  });
}

RW_API rwResult_t rwNicReport(rwTopology_t topology, const char* request, char** report) {
  return guarded("rwNicReport", [&] {
    checked(report, "report");
    const topology::Topology& machine = machine_of(topology);
    *report = duplicate(
        plan::nic_report(machine, plan::nic_report_request(&checked(request, "request"))));
  });
}

RW_API rwResult_t rwScheduleMicrobench(const char* pattern, const char* test, int width, int length,
                                       char** text) {
  return guarded("rwScheduleMicrobench", [&] {
    checked(text, "text");
    *text = duplicate(schedule::print(schedule::compile_micro(
        {&checked(pattern, "pattern"), &checked(test, "test"), width, length})));
  });
}

}  // extern "C"
