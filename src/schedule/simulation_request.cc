#include "schedule/simulation_request.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "plan/json.h"
#include "schedule/checked.h"
#include "schedule/text.h"
#include "topology/json.h"

namespace ropewalk::schedule {
namespace {

using Json = nlohmann::ordered_json;

/// Whether `key` is one of the options; then it is read.
bool is_option(const std::string& key, const Json& value, TrafficOptions& options) {
  if (key == "bytes") {
    options.bytes = value.get<double>();
  } else if (key == "chunk_bytes") {
    options.chunk_bytes = value.get<double>();
  } else if (key == "most_messages") {
    options.most_messages = value.get<double>();
  } else if (key == "paced") {
    options.paced = value.get<bool>();
  } else {
    return false;
  }
  return true;
}

/// Calls `read(key, value)`, which says whether it knows that field, for each of an object.
template <typename Read>
void for_each_field(std::string_view json, const Read& read) {
  try {
    const Json given = Json::parse(json);
    for (const auto& field : given.items()) {
      if (!read(field.key(), field.value())) {
        throw Error(Errc::kInvalidArgument, "simulation request: unknown field \"{}\"",
                    field.key());
      }
    }
  } catch (const Json::exception& error) {
    throw Error(Errc::kInvalidArgument, "simulation request: {}", error.what());
  }
}

}  // namespace

TrafficOptions simulation_options(std::string_view json) {
  TrafficOptions options;
  for_each_field(json, [&](const std::string& key, const Json& value) {
    return is_option(key, value, options);
  });
  return options;
}

SimulationRequest simulation_request(std::string_view json) {
  SimulationRequest request;
  for_each_field(json, [&](const std::string& key, const Json& value) {
    if (key == "plan") {
      request.plan = value.get<std::string>();
    } else if (key == "schedule") {
      request.schedule = value.get<std::string>();
    } else if (key == "topology") {
      request.topology = value.get<std::string>();
    } else if (key == "engine_seconds") {
      request.engine_seconds = value.get<double>();
    } else {
      return is_option(key, value, request.options);
    }
    return true;
  });
  if (request.plan.empty() == request.schedule.empty()) {
    throw Error(Errc::kInvalidArgument,
                "simulation request: one of \"plan\" and \"schedule\" must be there");
  }
  if (request.topology.empty()) {
    throw Error(Errc::kInvalidArgument, "simulation request: \"topology\" is missing or empty");
  }
  return request;
}

std::string simulate(const SimulationRequest& request, SimulationEngine engine) {
  engine.most_seconds = request.engine_seconds;
  const topology::Topology topology = topology::read_json(request.topology, "topology");
  if (!request.plan.empty()) {
    return simulate(topology, plan::read_json(request.plan, "plan", topology), request.options,
                    engine);
  }
  return simulate(topology, Checked::from(parse(request.schedule)), request.options, engine);
}

}  // namespace ropewalk::schedule
