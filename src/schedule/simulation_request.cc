#include "schedule/simulation_request.h"

#include <nlohmann/json.hpp>

#include "core/error.h"

namespace ropewalk::schedule {

SimulationRequest simulation_request(std::string_view json) {
  using Json = nlohmann::json;
  SimulationRequest request;
  request.subject_name = "subject";
  request.topology_name = "topology";
  try {
    const Json given = Json::parse(json);
    for (const auto& [key, value] : given.items()) {
      if (key == "subject") {
        request.subject = value.get<std::string>();
      } else if (key == "subject_name") {
        request.subject_name = value.get<std::string>();
      } else if (key == "topology") {
        request.topology = value.get<std::string>();
      } else if (key == "topology_name") {
        request.topology_name = value.get<std::string>();
      } else if (key == "bytes") {
        request.options.bytes = value.get<double>();
      } else if (key == "chunk_bytes") {
        request.options.chunk_bytes = value.get<double>();
      } else if (key == "most_messages") {
        request.options.most_messages = value.get<double>();
      } else if (key == "engine_seconds") {
        request.engine_seconds = value.get<double>();
      } else if (key == "paced") {
        request.options.paced = value.get<bool>();
      } else {
        throw Error(Errc::kInvalidArgument, "simulation request: unknown field \"{}\"", key);
      }
    }
  } catch (const Json::exception& error) {
    throw Error(Errc::kInvalidArgument, "simulation request: {}", error.what());
  }
  if (request.subject.empty()) {
    throw Error(Errc::kInvalidArgument, "simulation request: \"subject\" is missing or empty");
  }
  return request;
}

}  // namespace ropewalk::schedule
