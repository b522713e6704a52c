#include "plan/named_machine.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "plan/json.h"
#include "topology/json_text.h"

namespace ropewalk::plan {
namespace {

using Json = nlohmann::ordered_json;

/// Fields of what may be anything.
std::string text_at(const Json& json, const char* key) {
  if (!json.is_object()) return {};
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : std::string();
}

const Json& list_at(const Json& json, const char* key) {
  static const Json kNone = Json::array();
  if (!json.is_object()) return kNone;
  const auto found = json.find(key);
  return found != json.end() && found->is_array() ? *found : kNone;
}

class Collector {
 public:
  std::optional<topology::NodeIndex> node(const std::string& id) {
    const auto is_mark = [](char c) { return c > ' ' && c < 0x7f && c != '"' && c != '\\'; };
    const bool usable = !id.empty() && id.size() <= topology::kMaxIdBytes &&
                        std::all_of(id.begin(), id.end(), is_mark);
    if (!usable || machine_.nodes.size() >= topology::kMaxNodes) return std::nullopt;
    const auto [entry, is_new] = index_of_.try_emplace(id, machine_.nodes.size());
    if (is_new) {
      topology::Node node;
      node.id = id;
      node.kind = topology::NodeKind::kPcieSwitch;
      machine_.nodes.push_back(std::move(node));
    }
    return entry->second;
  }

  void gpu(const std::string& id) {
    const auto index = node(id);
    if (!index || machine_.nodes[*index].kind == topology::NodeKind::kGpu) return;
    machine_.nodes[*index].kind = topology::NodeKind::kGpu;
    machine_.nodes[*index].rank = gpus_++;
  }

  void link(const Json& entry) {
    const auto source = node(text_at(entry, "source"));
    const auto destination = node(text_at(entry, "destination"));
    const auto type = topology::parse_link_type(text_at(entry, "type"));
    if (!source || !destination || !type || *source == *destination) return;
    if (machine_.links.size() >= topology::kMaxLinks) return;
    if (!seen_.insert({*source, *destination, *type}).second) return;
    double capacity = 1;
    if (const auto given = entry.find("capacity"); given != entry.end() && given->is_number()) {
      const auto value = given->get<double>();
      if (value >= topology::kMinCapacity && value <= topology::kMaxCapacity) capacity = value;
    }
    topology::Link made;
    made.source = *source;
    made.destination = *destination;
    made.type = *type;
    made.capacity = capacity;
    machine_.links.push_back(std::move(made));
  }

  topology::Topology finish(std::string name) {
    machine_.name = std::move(name);
    machine_.assumptions = {"what is no GPU is drawn as a PCIe switch: a plan's file names only"};
    return topology::Topology(std::move(machine_));
  }

 private:
  topology::Description machine_;
  std::map<std::string, topology::NodeIndex> index_of_;
  std::set<std::tuple<topology::NodeIndex, topology::NodeIndex, topology::LinkType>> seen_;
  int gpus_ = 0;
};

}  // namespace

topology::Topology machine_named_in(std::string_view plan_json, std::string_view origin) {
  if (plan_json.size() > kMaxPlanBytes) {
    throw Error(Errc::kInvalidArgument, "{}: {} bytes; {} MiB is the limit", origin,
                plan_json.size(), kMaxPlanBytes >> 20);
  }
  Json json;
  try {
    json = Json::parse(plan_json);
  } catch (const Json::exception& error) {  // also numbers that are out of range
    throw Error(Errc::kInvalidArgument, "{}: {}", origin,
                topology::parse_error_words(plan_json, error.what()));
  }
  Collector found;
  for (const Json& gpu : list_at(json, "gpus")) {
    if (gpu.is_string()) found.gpu(gpu.get<std::string>());
  }
  for (const Json& link : list_at(json, "links")) found.link(link);
  if (json.is_object() && json.contains("bottleneck")) {
    const Json& why = json["bottleneck"];
    for (const Json& link : list_at(why, "links")) found.link(link);
    for (const Json& node : list_at(why, "inside")) {
      if (node.is_string()) found.node(node.get<std::string>());
    }
  }
  std::string name = text_at(json, "topology");
  return found.finish(name.empty() ? "unnamed" : std::move(name));
}

}  // namespace ropewalk::plan
