// Plans.
#include "ropewalk/plan.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "capi/guard.h"
#include "capi/planning_handles.h"
#include "plan/certificate.h"
#include "plan/estimate.h"
#include "plan/json.h"
#include "plan/link_split.h"
#include "plan/named_machine.h"
#include "plan/planner.h"
#include "schedule/from_plan.h"
#include "schedule/text.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

using Json = nlohmann::ordered_json;

Json parsed(const char* text, const char* what) {
  try {
    return Json::parse(&checked(text, what));
  } catch (const Json::exception& error) {
    throw Error(Errc::kInvalidArgument, "{}: {}", what, error.what());
  }
}

/// A request as read, and what the result is to have.
struct Asked {
  plan::Request request;
  bool trees = true;
  bool check = false;
};

Asked asked(const char* text) {
  const Json json = parsed(text, "request");
  Asked out;
  try {
    const std::string wanted = json.at("collective").get<std::string>();
    const std::optional<Collective> collective = parse_collective(wanted);
    if (!collective.has_value()) {
      throw Error(Errc::kInvalidArgument, "collective: unknown \"{}\"", wanted);
    }
    out.request.collective = *collective;
    out.request.selection.plane = json.value("plane", "");
    out.request.selection.gpus = json.value("gpus", std::vector<int>{});
    out.request.root = json.value("root", 0);
    out.request.algorithm = json.value("algorithm", "auto");
    out.request.trees_per_root = json.value("trees_per_root", 0);
    out.trees = json.value("trees", true);
    out.check = json.value("check", false);
  } catch (const Json::exception& error) {
    throw Error(Errc::kInvalidArgument, "request: {}", error.what());
  }
  return out;
}

}  // namespace

extern "C" {

RW_API rwResult_t rwPlanFree(rwPlan_t plan) {
  return guarded("rwPlanFree", [&] { delete plan; });
}

RW_API rwResult_t rwPlanMake(rwTopology_t topology, const char* request, rwPlan_t* plan) {
  return guarded("rwPlanMake", [&] {
    checked(plan, "plan");
    const auto& machine = checked(topology, "topology").machine;
    const Asked wanted = asked(request);
    plan::Plan made = plan::make_plan(*machine, wanted.request);
    std::optional<plan::Certificate> found;
    if (wanted.check) found = plan::check(*machine, made);
    std::optional<std::string> text;
    if (!wanted.trees) {
      text = plan::write_json(*machine, made, false, found.has_value() ? &*found : nullptr);
      made.trees = {};
    }
    *plan = new rwPlan{machine, std::move(made), std::move(found), std::move(text)};
  });
}

RW_API rwResult_t rwPlanRead(rwTopology_t topology, const char* text, const char* origin,
                             rwPlan_t* plan) {
  return guarded("rwPlanRead", [&] {
    checked(plan, "plan");
    const std::string_view json = &checked(text, "text");
    const char* name = &checked(origin, "origin");
    const auto machine =
        topology != nullptr
            ? topology->machine
            : std::make_shared<const topology::Topology>(plan::machine_named_in(json, name));
    *plan = new rwPlan{machine, plan::read_json(json, name, *machine), std::nullopt, std::nullopt};
  });
}

RW_API rwResult_t rwPlanJson(rwPlan_t plan, int trees, char** json) {
  return guarded("rwPlanJson", [&] {
    checked(json, "json");
    const rwPlan& given = checked(plan, "plan");
    if (given.without_trees.has_value()) {
      *json = duplicate(*given.without_trees);
      return;
    }
    const plan::Certificate* found = given.certificate.has_value() ? &*given.certificate : nullptr;
    *json = duplicate(plan::write_json(*given.machine, given.plan, trees != 0, found));
  });
}

RW_API rwResult_t rwPlanTopology(rwPlan_t plan, rwTopology_t* topology) {
  return guarded("rwPlanTopology", [&] {
    checked(topology, "topology");
    *topology = new rwTopology{checked(plan, "plan").machine};
  });
}

RW_API rwResult_t rwPlanBound(rwTopology_t topology, const char* request, char** json) {
  return guarded("rwPlanBound", [&] {
    checked(json, "json");
    const topology::Topology& on = machine_of(topology);
    *json = duplicate(plan::write_json(on, plan::make_bound(on, asked(request).request)));
  });
}

RW_API rwResult_t rwPlanCheck(rwPlan_t plan, char** json) {
  return guarded("rwPlanCheck", [&] {
    checked(json, "json");
    const rwPlan& given = checked(plan, "plan");
    *json = duplicate(plan::write_json(given.certificate.has_value()
                                           ? *given.certificate
                                           : plan::check(*given.machine, with_trees(plan).plan)));
  });
}

RW_API rwResult_t rwPlanTimes(rwPlan_t plan, const double* bytes, size_t count,
                              double* microseconds) {
  return guarded("rwPlanTimes", [&] {
    const rwPlan& given = with_trees(plan);
    if (count == 0) return;
    const std::span sizes(&checked(bytes, "bytes"), count);
    checked(microseconds, "microseconds");
    for (std::size_t i = 0; i < count; ++i) {
      if (!std::isfinite(sizes[i]) || sizes[i] < 0) {
        throw Error(Errc::kInvalidArgument, "bytes[{}]: {} is not a size", i, sizes[i]);
      }
    }
    std::transform(sizes.begin(), sizes.end(), microseconds,
                   [&](double size) { return plan::time_us(*given.machine, given.plan, size); });
  });
}

RW_API rwResult_t rwScheduleFromPlan(rwPlan_t plan, char** text) {
  return guarded("rwScheduleFromPlan", [&] {
    checked(text, "text");
    *text = duplicate(schedule::print(schedule::from_plan(with_trees(plan).plan).schedule));
  });
}

RW_API rwResult_t rwPlanAlgorithms(char** json) {
  return guarded("rwPlanAlgorithms", [&] {
    checked(json, "json");
    Json out = Json::array();
    for (const plan::AlgorithmInfo& each : plan::algorithms()) {
      Json collectives = Json::array();
      for (const Collective collective : each.collectives) collectives.push_back(name(collective));
      out.push_back({{"name", each.name}, {"help", each.help}, {"collectives", collectives}});
    }
    *json = text_of(out);
  });
}

RW_API rwResult_t rwPlanSplit(const char* classes, double bytes, char** json) {
  return guarded("rwPlanSplit", [&] {
    checked(json, "json");
    std::vector<plan::LinkClass> given;
    try {
      for (const Json& each : parsed(classes, "classes")) {
        given.push_back({each.at("gbps").get<double>() * 1e3, each.value("setup_us", 0.0)});
      }
    } catch (const Json::exception& error) {
      throw Error(Errc::kInvalidArgument, "classes: {}", error.what());
    }
    const plan::LinkSplit split = plan::split_over_classes(given, bytes);
    *json = text_of({{"time_us", split.time_us}, {"bytes", split.bytes}});
  });
}

}  // extern "C"
