// The objects behind rwTopology_t and rwPlan_t.
//
// Both are immutable: any number of threads may use one at once, and shared pointers to their
// contents may outlive them.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "capi/guard.h"
#include "core/error.h"
#include "plan/certificate.h"
#include "plan/plan.h"
#include "ropewalk/plan.h"
#include "ropewalk/topology.h"
#include "topology/topology.h"

struct rwTopology {
  const std::shared_ptr<const ropewalk::topology::Topology> machine;
};

struct rwPlan {
  const std::shared_ptr<const ropewalk::topology::Topology> machine;
  const ropewalk::plan::Plan plan;
  const std::optional<ropewalk::plan::Certificate> certificate;
  /// The JSON of a plan that was made without its trees, which `plan` then lacks.
  const std::optional<std::string> without_trees;
};

namespace ropewalk::capi {

/// For the caller, who frees it with rwFreeText.
inline char* text_of(const nlohmann::ordered_json& json) {
  return duplicate(json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
}

inline rwTopology_t new_handle(topology::Topology made) {
  return new rwTopology{std::make_shared<const topology::Topology>(std::move(made))};
}

inline const topology::Topology& machine_of(rwTopology_t topology) {
  return *checked(topology, "topology").machine;
}

/// A plan that the caller must give, of whose trees something is to be made.
inline const rwPlan& with_trees(rwPlan_t plan) {
  const rwPlan& given = checked(plan, "plan");
  if (given.without_trees.has_value()) {
    throw Error(Errc::kInvalidArgument, "plan: was made without its trees (\"trees\": false)");
  }
  return given;
}

}  // namespace ropewalk::capi
