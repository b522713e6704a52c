// Plans as texts.
#include "ropewalk/plan.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "capi/guard.h"
#include "plan/certificate.h"
#include "plan/estimate.h"
#include "plan/json.h"
#include "plan/link_split.h"
#include "plan/planner.h"
#include "topology/json.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

using Json = nlohmann::ordered_json;

topology::Topology machine(const char* text) {
  return topology::read_json(&checked(text, "topology"), "topology");
}

char* text_of(const Json& json) {
  return duplicate(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

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

RW_API rwResult_t rwPlanMake(const char* topology, const char* request, char** json) {
  return guarded("rwPlanMake", [&] {
    checked(json, "json");
    const topology::Topology on = machine(topology);
    const Asked wanted = asked(request);
    const plan::Plan made = plan::make_plan(on, wanted.request);
    std::optional<plan::Certificate> found;
    if (wanted.check) found = plan::check(on, made);
    *json =
        duplicate(plan::write_json(on, made, wanted.trees, found.has_value() ? &*found : nullptr));
  });
}

RW_API rwResult_t rwPlanBound(const char* topology, const char* request, char** json) {
  return guarded("rwPlanBound", [&] {
    checked(json, "json");
    const topology::Topology on = machine(topology);
    *json = duplicate(plan::write_json(on, plan::make_bound(on, asked(request).request)));
  });
}

RW_API rwResult_t rwPlanCheck(const char* topology, const char* plan, char** json) {
  return guarded("rwPlanCheck", [&] {
    checked(json, "json");
    const topology::Topology on = machine(topology);
    const plan::Certificate found =
        plan::check(on, plan::read_json(&checked(plan, "plan"), "plan", on));
    *json = duplicate(plan::write_json(found));
  });
}

RW_API rwResult_t rwPlanTimes(const char* topology, const char* plan, const char* bytes,
                              char** json) {
  return guarded("rwPlanTimes", [&] {
    checked(json, "json");
    const topology::Topology on = machine(topology);
    const plan::Plan read = plan::read_json(&checked(plan, "plan"), "plan", on);
    Json out = Json::array();
    try {
      for (const double size : parsed(bytes, "bytes").get<std::vector<double>>()) {
        out.push_back(plan::time_us(on, read, size));
      }
    } catch (const Json::exception& error) {
      throw Error(Errc::kInvalidArgument, "bytes: {}", error.what());
    }
    *json = text_of(out);
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
