#include "plan/nic_request.h"

#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"

namespace ropewalk::plan {

NicReportRequest nic_report_request(std::string_view json) {
  using Fields = nlohmann::json;
  NicReportRequest request;
  try {
    const Fields given = Fields::parse(json);
    for (const auto& [key, value] : given.items()) {
      if (key == "host") {
        request.host = value.get<int>();
      } else if (key == "measured") {
        for (const auto& [nic, rate] : value.items()) request.measured[nic] = rate.get<double>();
      } else if (key == "channels") {
        request.channels = value.get<int>();
      } else if (key == "one_rail") {
        request.one_rail = value.get<bool>();
      } else if (key == "graph") {
        request.graph = value.get<std::string>();
      } else {
        throw Error(Errc::kInvalidArgument, "NIC request: unknown field \"{}\"", key);
      }
    }
  } catch (const Fields::exception& error) {
    throw Error(Errc::kInvalidArgument, "NIC request: {}", error.what());
  }
  return request;
}

}  // namespace ropewalk::plan
