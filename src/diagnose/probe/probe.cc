#include "diagnose/probe/probe.h"

#include <nlohmann/json.hpp>

#include "comm/device_group.h"
#include "core/error.h"

namespace ropewalk::diagnose::probe {
namespace {

using Json = nlohmann::json;

Json list() {
  Json gpus = Json::array();
  for (int i = 0; i < comm::device_count(); ++i) {
    gpus.push_back(Json::parse(comm::describe_device(i)));
  }
  return {{"interfaces", interfaces()}, {"gpus", gpus}, {"why_no_gpu", comm::why_no_device()}};
}

Json to_json(const Checks& checks) {
  Json rows = Json::array();
  for (const Check& check : checks) {
    const auto number = [](const std::optional<double>& value) {
      return value ? Json(*value) : Json();
    };
    rows.push_back({{"what", check.what},
                    {"outcome", name(check.outcome)},
                    {"found", check.found},
                    {"cause", check.cause},
                    {"gbps", number(check.gbps)},
                    {"latency_us", number(check.latency_us)}});
  }
  return {{"checks", rows}};
}

}  // namespace

std::string_view name(Outcome outcome) noexcept {
  switch (outcome) {
    case Outcome::kPassed: return "passed";
    case Outcome::kDegraded: return "degraded";
    case Outcome::kFailed: return "failed";
    case Outcome::kSkipped: return "skipped";
  }
  return "failed";
}

std::string run(std::string_view request) {
  std::string path;
  std::string named;
  std::vector<int> devices;
  try {
    const Json asked = Json::parse(request);
    path = asked.at("path").get<std::string>();
    named = asked.value("name", "");
    devices = asked.value("devices", std::vector<int>{});
  } catch (const Json::exception& error) {
    throw Error(Errc::kInvalidArgument, "request: {}", error.what());
  }
  const auto text = [](const Json& json) {
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  };
  if (path == "list") return text(list());
  if (path == "shared-memory") return text(to_json(shared_memory()));
  if (path == "interface") return text(to_json(interface(named)));
  if (path == "rdma") return text(to_json(rdma()));
  if (path == "sisci") return text(to_json(sisci_adapters()));
  if (path == "psm2") return text(to_json(omni_path()));
  if (path == "ofi") return text(to_json(fabrics()));
  if (path == "rails") return text(to_json(several_devices()));
  if (path == "gpu" && devices.size() == 1) return text(to_json(gpu(devices[0])));
  if (path == "gpu-pair" && devices.size() == 2) {
    return text(to_json(gpu_pair(devices[0], devices[1])));
  }
  throw Error(Errc::kInvalidArgument, "request: no path \"{}\" with {} devices", path,
              devices.size());
}

}  // namespace ropewalk::diagnose::probe
