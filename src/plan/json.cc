#include "plan/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/index.h"
#include "plan/bottleneck.h"
#include "plan/driver_hops.h"
#include "plan/estimate.h"
#include "plan/loads.h"
#include "plan/network.h"
#include "topology/json_text.h"

namespace ropewalk::plan {

namespace {

using Json = nlohmann::ordered_json;
using topology::parse_error_words;

constexpr std::string_view kSchema = "ropewalk-plan/1";

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// An array with one element per line.
std::string lines(const std::vector<Json>& elements) {
  std::string out = "[";
  for (std::size_t i = 0; i < elements.size(); ++i) {
    out += (i == 0 ? "\n    " : ",\n    ") + dump(elements[i]);
  }
  return out + (elements.empty() ? "]" : "\n  ]");
}

Json json_of(const topology::Topology& topology, const TreeEdge& edge, const char* phase,
             const std::map<int, int>& index) {
  Json path = Json::array({topology.node(topology.link(at(edge.links[0])).source).id});
  Json links = Json::array();
  for (const int link : edge.links) {
    path.push_back(topology.node(topology.link(at(link)).destination).id);
    links.push_back(index.at(link));
  }
  return {{"phase", phase},
          {"source", edge.source},
          {"destination", edge.destination},
          {"path", std::move(path)},
          {"links", std::move(links)}};
}

Json json_of(const topology::Topology& topology, const Bound& bound) {
  Json inside = Json::array();
  for (const int node : bound.why.inside_nodes) inside.push_back(topology.node(at(node)).id);
  Json links = Json::array();
  for (std::size_t i = 0; i < bound.why.links.size(); ++i) {
    const topology::Link& link = topology.link(at(bound.why.links[i]));
    Json entry = {{"source", topology.node(link.source).id},
                  {"destination", topology.node(link.destination).id},
                  {"type", name(link.type)}};
    if (!bound.why.prices.empty()) entry["price"] = bound.why.prices[i];
    links.push_back(std::move(entry));
  }
  return {{"kind", bound.why.prices.empty() ? "cut" : "prices"},
          {"words", bound.why.words},
          {"capacity_gbps", bound.why.capacity.to_double()},
          {"ranks_inside", bound.why.ranks_inside},
          {"inside", std::move(inside)},
          {"links", std::move(links)}};
}

Json classes_of(const topology::Topology& topology, const Plan& plan) {
  Json out = Json::array();
  for (const HopClassShare& share : hop_classes(topology, plan)) {
    const char* words = share.hop_class == HopClass::kPeerAccess     ? "peer access"
                        : share.hop_class == HopClass::kNoPeerAccess ? "no peer access"
                                                                     : "none";
    out.push_back(
        {{"hops", words}, {"num_trees", share.trees}, {"rate_gbps", share.rate.to_double()}});
  }
  return out;
}

/// What limits the plan itself, which may stay below the bound: its busiest links.
Json limit_of(const topology::Topology& topology, const Plan& plan,
              const std::map<int, int>& index) {
  Fraction largest = 0;
  for (const LinkLoad& each : plan.links) largest = std::max(largest, each.load / each.capacity);
  std::vector<int> busiest;
  Json links = Json::array();
  for (const LinkLoad& each : plan.links) {
    if (each.load == Fraction(0) || each.load / each.capacity != largest) continue;
    busiest.push_back(each.link);
    links.push_back(index.at(each.link));
  }
  const bool one = busiest.size() == 1;
  std::set<double> capacities;
  for (const int link : busiest) capacities.insert(topology.link(at(link)).capacity);
  const std::string each =
      capacities.size() == 1
          ? fmt::format(" ({:.6g} GB/s{})", *capacities.begin(), one ? "" : " each")
          : "";
  std::string words =
      largest >= Fraction(1)
          ? fmt::format("{}{} limit{} this plan", name_links(topology, busiest), each,
                        one ? "s" : "")
          : fmt::format("the choice of trees limits this plan: {}{} {} busiest, {:.3g}% full",
                        name_links(topology, busiest), each, one ? "is" : "are",
                        largest.to_double() * 100);
  return {{"words", std::move(words)},
          {"largest_load", largest.to_double()},
          {"links", std::move(links)}};
}

/// A JSON value and where it is, for messages.
class Value {
 public:
  Value(const Json& json, std::string_view origin, std::string path)
      : json_(json), origin_(origin), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(Errc::kInvalidArgument, "{}: {}{}{}", origin_, path_, path_.empty() ? "" : ": ",
                what);
  }
  [[nodiscard]] bool has(const char* key) const { return json_.contains(key); }
  [[nodiscard]] Value field(const char* key) const {
    if (!json_.is_object()) refuse(fmt::format("must be an object, is {}", json_.type_name()));
    const auto found = json_.find(key);
    if (found == json_.end()) refuse(fmt::format("\"{}\" is missing", key));
    return {*found, origin_, path_.empty() ? key : path_ + "." + key};
  }
  [[nodiscard]] std::vector<Value> elements() const {
    if (!json_.is_array()) refuse(fmt::format("must be an array, is {}", json_.type_name()));
    std::vector<Value> out;
    for (std::size_t i = 0; i < json_.size(); ++i) {
      out.emplace_back(json_[i], origin_, fmt::format("{}[{}]", path_, i));
    }
    return out;
  }
  [[nodiscard]] std::string text() const {
    if (!json_.is_string()) refuse(fmt::format("must be a string, is {}", json_.type_name()));
    return json_.get<std::string>();
  }
  [[nodiscard]] double number() const {
    if (!json_.is_number()) refuse(fmt::format("must be a number, is {}", json_.type_name()));
    return json_.get<double>();
  }
  /// A whole number of 0 to `limit` - 1.
  [[nodiscard]] int index(std::size_t limit) const {
    if (!json_.is_number_integer()) {
      refuse(fmt::format("must be a whole number, is {}", dump(json_).substr(0, 40)));
    }
    const bool fits = json_.is_number_unsigned() &&
                      json_.get<std::uint64_t>() < static_cast<std::uint64_t>(limit);
    if (!fits) refuse(fmt::format("is {}; must be 0 to {}", dump(json_), limit - 1));
    return json_.get<int>();
  }
  [[nodiscard]] Fraction fraction() const {
    try {
      return Fraction::parse(text());
    } catch (const Error& error) {
      refuse(error.what());
    }
  }

 private:
  const Json& json_;
  std::string_view origin_;
  std::string path_;
};

int node_of(const topology::Topology& topology, const Value& value) {
  const auto found = topology.find(value.text());
  if (!found.has_value()) {
    value.refuse(fmt::format("{} has no node \"{}\"", topology.name(), value.text()));
  }
  return static_cast<int>(*found);
}

int link_of(const topology::Topology& topology, const Value& value) {
  const int source = node_of(topology, value.field("source"));
  const int destination = node_of(topology, value.field("destination"));
  const auto type = topology::parse_link_type(value.field("type").text());
  if (!type.has_value()) {
    value.field("type").refuse(fmt::format("unknown \"{}\"", value.field("type").text()));
  }
  const auto found = topology.find_link(at(source), at(destination), *type);
  if (!found.has_value()) {
    value.refuse(fmt::format("{} has no {} link from {} to {}", topology.name(), name(*type),
                             topology.node(at(source)).id, topology.node(at(destination)).id));
  }
  return static_cast<int>(*found);
}

Tree tree_of(const Value& value, int num_ranks, const std::vector<int>& links) {
  Tree out;
  out.root = value.field("root").index(at(num_ranks));
  out.weight = value.field("weight").fraction();
  if (out.weight <= Fraction(0)) value.field("weight").refuse("must be above zero");
  if (value.has("weight_gbps")) {
    const double told = value.field("weight_gbps").number();
    const double exact = out.weight.to_double();
    if (!(std::abs(told - exact) <= 1e-6 * exact)) {
      value.field("weight_gbps")
          .refuse(fmt::format("is {}, but \"weight\" is {:.9g}", told, exact));
    }
  }
  for (const Value& entry : value.field("edges").elements()) {
    TreeEdge edge{entry.field("source").index(at(num_ranks)),
                  entry.field("destination").index(at(num_ranks)),
                  {}};
    for (const Value& link : entry.field("links").elements()) {
      edge.links.push_back(links[at(link.index(links.size()))]);
    }
    if (edge.links.empty()) entry.field("links").refuse("is empty");
    const std::string phase = entry.field("phase").text();
    if (phase != "reduce" && phase != "broadcast") {
      entry.field("phase").refuse(fmt::format("must be reduce or broadcast, is \"{}\"", phase));
    }
    (phase == "reduce" ? out.reduce : out.broadcast).push_back(std::move(edge));
  }
  return out;
}

Bound bound_of(const topology::Topology& topology, const Value& root) {
  Bound out;
  out.algbw = root.field("bound").fraction();
  const Value why = root.field("bottleneck");
  out.why.words = why.field("words").text();
  for (const Value& node : why.field("inside").elements()) {
    out.why.inside_nodes.push_back(node_of(topology, node));
  }
  const bool priced = why.field("kind").text() == "prices";
  for (const Value& entry : why.field("links").elements()) {
    out.why.links.push_back(link_of(topology, entry));
    if (priced) out.why.prices.push_back(entry.field("price").number());
    out.why.capacity +=
        Fraction::from_decimal(topology.link(at(out.why.links.back())).capacity, kCapacityDigits);
  }
  out.why.ranks_inside = why.field("ranks_inside").index(topology.gpus().size() + 1);
  return out;
}

}  // namespace

std::string write_json(const topology::Topology& topology, const Bound& bound) {
  return dump({{"bound_gbps", bound.algbw.to_double()},
               {"bound", bound.algbw.to_string()},
               {"bottleneck", json_of(topology, bound)}});
}

std::string write_json(const Certificate& certificate) {
  return dump({{"valid", certificate.valid},
               {"bound_holds", certificate.bound_holds},
               {"optimal", certificate.optimal},
               {"largest_load", certificate.largest_load},
               {"defects", certificate.defects}});
}

std::string write_json(const topology::Topology& topology, const Plan& plan, bool with_trees,
                       const Certificate* certificate) {
  const int ranks = plan.num_ranks();
  Json gpus = Json::array();
  for (const int node : plan.gpus) gpus.push_back(topology.node(at(node)).id);
  Json head = {{"schema", kSchema},
               {"topology", plan.topology},
               {"plane", plan.plane},
               {"collective", name(plan.collective)},
               {"algorithm", plan.algorithm},
               {"root", has_root(plan.collective) ? Json(plan.root) : Json(nullptr)},
               {"gpus", std::move(gpus)},
               {"rate_gbps", plan.algbw.to_double()},
               {"rate", plan.algbw.to_string()},
               {"busbw_gbps", plan.algbw.to_double() * bus_factor(plan.collective, ranks)},
               {"bound_gbps", plan.bound.algbw.to_double()},
               {"bound", plan.bound.algbw.to_string()},
               {"ratio", (plan.algbw / plan.bound.algbw).to_double()},
               {"optimal", plan.optimal},
               {"latency_us", plan.latency_us},
               {"num_trees", plan.trees.size()},
               {"hops", plan.hops},
               {"hop_classes", classes_of(topology, plan)},
               {"bottleneck", json_of(topology, plan.bound)}};
  if (certificate != nullptr) head["certificate"] = Json::parse(write_json(*certificate));
  const std::vector<double> sizes = bytes_for_shares(topology, plan, {0.5, 0.9});
  head["bytes_for_half"] = sizes[0];
  head["bytes_for_90_percent"] = sizes[1];
  std::map<int, int> index;
  std::vector<Json> links;
  for (const LinkLoad& used : plan.links) {
    const topology::Link& link = topology.link(at(used.link));
    index[used.link] = static_cast<int>(links.size());
    links.push_back({{"source", topology.node(link.source).id},
                     {"destination", topology.node(link.destination).id},
                     {"type", name(link.type)},
                     {"capacity", used.capacity.to_double()},
                     {"load", used.load.to_double()}});
  }
  head["limit"] = limit_of(topology, plan, index);
  std::vector<Json> trees;
  for (const Tree& tree : plan.trees) {
    if (!with_trees) break;
    Json edges = Json::array();
    for (const TreeEdge& edge : tree.reduce) {
      edges.push_back(json_of(topology, edge, "reduce", index));
    }
    for (const TreeEdge& edge : tree.broadcast) {
      edges.push_back(json_of(topology, edge, "broadcast", index));
    }
    trees.push_back({{"root", tree.root},
                     {"weight_gbps", tree.weight.to_double()},
                     {"weight", tree.weight.to_string()},
                     {"edges", std::move(edges)}});
  }
  std::string out = "{";
  for (const auto& [key, value] : head.items()) {
    out += fmt::format("\n  {}: {},", dump(Json(key)), dump(value));
  }
  out += fmt::format("\n  \"links\": {}", lines(links));
  if (with_trees) out += fmt::format(",\n  \"trees\": {}", lines(trees));
  return out + "\n}\n";
}

Plan read_json(std::string_view text, std::string_view origin, const topology::Topology& topology) {
  if (text.size() > kMaxPlanBytes) {
    throw Error(Errc::kInvalidArgument, "{}: {} bytes; {} MiB is the limit", origin, text.size(),
                kMaxPlanBytes >> 20);
  }
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::exception& error) {  // numbers that are out of range, too
    throw Error(Errc::kInvalidArgument, "{}: {}", origin, parse_error_words(text, error.what()));
  }
  const Value root(json, origin, "");
  if (root.field("schema").text() != kSchema) {
    root.field("schema").refuse(fmt::format("must be \"{}\"", kSchema));
  }
  Plan out;
  out.topology = root.field("topology").text();
  if (out.topology != topology.name()) {
    root.field("topology")
        .refuse(fmt::format("is for \"{}\", not for \"{}\"", out.topology, topology.name()));
  }
  out.plane = root.field("plane").text();
  const auto collective = parse_collective(root.field("collective").text());
  if (!collective.has_value()) root.field("collective").refuse("unknown operation");
  out.collective = *collective;
  out.algorithm = root.field("algorithm").text();
  for (const Value& gpu : root.field("gpus").elements()) {
    const int node = node_of(topology, gpu);
    if (topology.node(at(node)).kind != topology::NodeKind::kGpu ||
        std::find(out.gpus.begin(), out.gpus.end(), node) != out.gpus.end()) {
      gpu.refuse("must be a GPU that is named once");
    }
    out.gpus.push_back(node);
  }
  if (out.gpus.size() < 2) root.field("gpus").refuse("must be at least two");
  if (has_root(out.collective)) out.root = root.field("root").index(out.gpus.size());
  std::vector<int> links;
  for (const Value& entry : root.field("links").elements()) {
    links.push_back(link_of(topology, entry));
  }
  for (const Value& tree : root.field("trees").elements()) {
    out.trees.push_back(tree_of(tree, out.num_ranks(), links));
    out.algbw += out.trees.back().weight;
  }
  if (out.trees.empty()) root.field("trees").refuse("is empty");
  out.bound = bound_of(topology, root);
  if (out.bound.algbw <= Fraction(0)) root.field("bound").refuse("must be above zero");
  out.links = link_loads(topology, links, out.trees);
  out.optimal = is_at_bound(out);
  out.latency_us = latency_us(topology, out);
  out.hops = hops(out);
  return out;
}

}  // namespace ropewalk::plan
