// How readers and discovery put a Description together.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "topology/topology.h"

namespace ropewalk::topology {

/// Appends nodes and links; gives nodes that have no id one of their kind ("gpu0", "plx3").
class Builder {
 public:
  explicit Builder(Description start) : made_(std::move(start)) {}

  /// An empty `node.id` becomes PREFIX + WORD + number, PREFIX "h1." where there are several hosts.
  NodeIndex add(Node node);

  /// One direction. A second link of the same ends and type adds its capacity and lanes to the
  /// first.
  void link(Link link);
  /// Both directions.
  void join(const Link& link);
  /// Both directions, rated from what PCIe is there; zeros: not known, then assumed (gen 3 x16).
  void join_pcie(NodeIndex lower, NodeIndex upper, int gen, int width);

  [[nodiscard]] Node& node(NodeIndex index) { return made_.nodes.at(index); }
  [[nodiscard]] const Description& so_far() const noexcept { return made_; }
  void note(std::string text) { made_.assumptions.push_back(std::move(text)); }

  /// With standard_planes() unless there are planes. GPUs without ranks get those that are left,
  /// in order.
  Description finish() &&;

 private:
  Description made_;
  std::map<std::string, int> counts_;  // by prefix and word
  std::map<std::string, NodeIndex> ids_;
  std::map<std::tuple<NodeIndex, NodeIndex, LinkType>, LinkIndex> links_;
};

/// The planes that a machine's links suggest: each GPU fabric by itself ("nvlink", "xgmi"), "pcie"
/// (with the links between sockets), "nvlink+net", "ntb", "ethernet", "all".
std::vector<Plane> standard_planes(const Description& description);

/// "0-3,8" <-> 0x10f as "0000010f"; masks have groups of 8 hexadecimal digits with commas, high
/// first. @throws Error kInvalidArgument for anything else, and for CPUs from 65536 on
std::string cpu_mask(std::string_view cpu_list);
std::string cpu_list(std::string_view cpu_mask);

/// The value of an attribute, or nullptr.
const std::string* find_attribute(const Attributes& attributes, std::string_view name);

}  // namespace ropewalk::topology
