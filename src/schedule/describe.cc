#include "schedule/describe.h"

#include <nlohmann/json.hpp>
#include <string_view>

#include "core/types.h"
#include "schedule/compile.h"

namespace ropewalk::schedule {
namespace {

// Keys in the order in which they are written here, for readers.
using Json = nlohmann::ordered_json;

std::string text_of(const Json& json) {
  // A label in a user's schedule object may be any bytes: replace what is not UTF-8.
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const Step& step) {
  Json operands = Json::array();
  for (const Operand& operand : step.operands) {
    switch (operand.kind) {
      case Operand::Kind::kLink: operands.push_back(operand.peer); break;
      case Operand::Kind::kInput: operands.push_back("in"); break;
      case Operand::Kind::kOutput: operands.push_back("out"); break;
    }
  }
  return {{"block", step.block},
          {"operands", std::move(operands)},
          {"write_output", step.write_output},
          {"finished", step.finished},
          {"send", step.send}};
}

std::string_view collective_name(Collective collective) {
  const bool known = static_cast<unsigned>(collective) < static_cast<unsigned>(kNumCollectives);
  return known ? name(collective) : "unknown";
}

}  // namespace

std::string describe(const Schedule& schedule, const CheckReport& report) {
  Json json = {{"collective", collective_name(schedule.collective)},
               {"algorithm", schedule.algorithm},
               {"ranks", schedule.num_ranks},
               {"root", schedule.root},
               {"parts", schedule.parts},
               {"accepted", report.accepted},
               {"defects", report.defects},
               {"in_place", report.in_place},
               {"longest_path", report.longest_path}};
  Json& channels = json["channels"] = Json::array();
  for (const int weight : schedule.weight) channels.push_back({{"weight", weight}});
  Json& links = json["links"] = Json::array();
  for (const LinkLoad& link : report.links) {
    links.push_back({{"channel", link.channel},
                     {"source", link.source},
                     {"destination", link.destination},
                     {"messages", link.messages},
                     {"units", link.units}});
  }
  Json& programs = json["programs"] = Json::array();
  for (const auto& strands : schedule.programs) {
    Json& of_rank = programs.emplace_back(Json::array());
    for (const StepList& steps : strands) {
      Json& of_channel = of_rank.emplace_back(Json::array());
      for (const Step& step : steps) of_channel.push_back(json_of(step));
    }
  }
  return text_of(json);
}

std::string describe_algorithms() {
  Json json = Json::array();
  for (const Algorithm& algorithm : algorithms()) {
    Json collectives = Json::array();
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      const bool served = algorithm.supports({collective, 2, 0, 1}) ||
                          algorithm.supports({collective, 4, 0, 1, {}, {0, 0, 1, 1}});
      if (served) collectives.push_back(name(collective));
    }
    Json row = {{"name", algorithm.name},
                {"help", algorithm.help},
                {"collectives", std::move(collectives)}};
    if (!algorithm.needs.empty()) row["needs"] = algorithm.needs;
    json.push_back(std::move(row));
  }
  return text_of(json);
}

}  // namespace ropewalk::schedule
