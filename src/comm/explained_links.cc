#include "comm/explained_links.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "plan/planner.h"

namespace ropewalk::comm {

nlohmann::json bound_on(const topology::Topology& machine, Collective collective, int root) {
  const auto& planned = plan::planned_collectives();
  if (std::find(planned.begin(), planned.end(), collective) == planned.end() ||
      machine.gpus().size() < 2) {
    return nullptr;
  }
  plan::Request request;
  request.collective = collective;
  request.root = has_root(collective) ? root : 0;
  try {
    const plan::Bound bound = plan::make_bound(machine, request);
    return {{"algbw_gbps", bound.algbw.to_double()}, {"words", bound.why.words}};
  } catch (const Error&) {
    return nullptr;  // more GPUs than are planned for
  }
}

nlohmann::json limiting_links(const topology::Topology& machine, const tune::Choice& choice) {
  nlohmann::json links = nlohmann::json::array();
  for (const tune::LinkShare& used : choice.limiting_links) {
    const topology::Link& link = machine.link(static_cast<std::size_t>(used.link));
    links.push_back({{"link", fmt::format("{}->{}", machine.node(link.source).id,
                                          machine.node(link.destination).id)},
                     {"type", name(link.type)},
                     {"capacity", link.capacity},
                     {"load", used.share * choice.algbw_gbps}});
  }
  return links;
}

}  // namespace ropewalk::comm
