// Topologies as texts, those of communicators too.
#include "ropewalk/topology.h"

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bootstrap/launch.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/communicator.h"
#include "comm/machine.h"
#include "topology/affinity.h"
#include "topology/discover.h"
#include "topology/distance.h"
#include "topology/json.h"
#include "topology/nccl_xml.h"
#include "topology/read.h"
#include "topology/replicate.h"
#include "topology/synthetic.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

namespace {

using Json = nlohmann::ordered_json;

topology::Topology given(const char* text) {
  return topology::read_json(&checked(text, "topology"), "topology");
}

char* text_of(const topology::Topology& made) { return duplicate(topology::write_json(made)); }

char* text_of(const Json& json) {
  return duplicate(json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json or_null(const std::optional<int>& value) { return value ? Json(*value) : Json(); }

Json describe(const topology::DistanceMatrix& matrix, const topology::Topology& machine) {
  Json devices = Json::array();
  for (const auto& device : matrix.devices) {
    devices.push_back({{"id", machine.node(device.node).id},
                       {"label", device.label},
                       {"cpus", device.cpus},
                       {"numa", or_null(device.numa)}});
  }
  return {{"devices", devices}, {"cells", matrix.cells}};
}

Json describe(const topology::Placement& placed, const topology::Topology& machine) {
  const auto id = [&](const std::optional<topology::NodeIndex>& node) {
    return node ? Json(machine.node(*node).id) : Json();
  };
  Json nics = Json::array();
  for (const topology::NodeIndex nic : placed.nics) nics.push_back(machine.node(nic).id);
  return {{"gpu", id(placed.gpu)},
          {"cpu", id(placed.cpu)},
          {"numa", placed.cpu ? or_null(machine.node(*placed.cpu).numa) : Json()},
          {"cpus", placed.cpu ? machine.node(*placed.cpu).cpus : ""},
          {"nics", nics},
          {"nic_path", placed.nics.empty() ? Json() : Json(topology::name(placed.nic_path))}};
}

}  // namespace

extern "C" {

RW_API rwResult_t rwTopologyDiscover(char** json) {
  return guarded("rwTopologyDiscover", [&] {
    checked(json, "json");
    *json = text_of(topology::discover());
  });
}

RW_API rwResult_t rwTopologyRead(const char* text, const char* origin, char** json) {
  return guarded("rwTopologyRead", [&] {
    checked(json, "json");
    *json = text_of(topology::read_topology(&checked(text, "text"), &checked(origin, "origin")));
  });
}

RW_API rwResult_t rwTopologySynthetic(const char* description, char** json) {
  return guarded("rwTopologySynthetic", [&] {
    checked(json, "json");
    *json = text_of(topology::synthetic(&checked(description, "description")));
  });
}

RW_API rwResult_t rwTopologyPresets(char** json) {
  return guarded("rwTopologyPresets", [&] {
    checked(json, "json");
    Json found = Json::array();
    for (const topology::Preset& each : topology::presets()) {
      found.push_back({{"name", each.name}, {"parts", each.parts}, {"help", each.help}});
    }
    *json = text_of(found);
  });
}

RW_API rwResult_t rwTopologyReplicate(const char* topology, int hosts, int rails, char** json) {
  return guarded("rwTopologyReplicate", [&] {
    checked(json, "json");
    *json = text_of(topology::replicate(
        given(topology), hosts, rails != 0 ? topology::Fabric::kRails : topology::Fabric::kOne));
  });
}

RW_API rwResult_t rwTopologySelect(const char* topology, const char* plane, const int* ranks,
                                   int nranks, char** json) {
  return guarded("rwTopologySelect", [&] {
    checked(json, "json");
    topology::Topology made = given(topology);
    if (plane != nullptr) made = made.plane(plane);
    if (ranks != nullptr) {
      if (nranks < 0) throw Error(Errc::kInvalidArgument, "nranks: {}", nranks);
      made = made.with_gpus(std::vector<int>(ranks, ranks + nranks));
    }
    *json = text_of(made);
  });
}

RW_API rwResult_t rwTopologyMatrix(const char* topology, int host, char** json) {
  return guarded("rwTopologyMatrix", [&] {
    checked(json, "json");
    const topology::Topology machine = given(topology);
    if (host < -1 || host >= machine.hosts()) {
      throw Error(Errc::kInvalidArgument, "host {}: {} has {} hosts, numbered from 0", host,
                  machine.name(), machine.hosts());
    }
    const topology::Distances distances(machine);
    *json = text_of(describe(distance_matrix(machine, distances, host), machine));
  });
}

RW_API rwResult_t rwTopologyNcclXml(const char* topology, int host, char** json) {
  return guarded("rwTopologyNcclXml", [&] {
    checked(json, "json");
    const topology::NcclXml made = topology::write_nccl_xml(given(topology), host);
    *json = text_of(Json{{"text", made.text}, {"notes", made.notes}});
  });
}

RW_API rwResult_t rwTopologyPlace(const char* topology, int host, int local_size, char** json) {
  return guarded("rwTopologyPlace", [&] {
    checked(json, "json");
    const topology::Topology machine = given(topology);
    const topology::Distances distances(machine);
    Json found = Json::array();
    for (const auto& each : topology::place_ranks(machine, distances, host, local_size)) {
      found.push_back(describe(each, machine));
    }
    *json = text_of(found);
  });
}

RW_API rwResult_t rwCommTopology(rwComm_t comm, char** json) {
  return guarded("rwCommTopology", [&] {
    comm::Communicator& asked = *checked(comm, "comm").comm;
    checked(json, "json");
    *json = text_of(asked.machine().topology);
  });
}

RW_API rwResult_t rwCommPlacement(rwComm_t comm, char** json) {
  return guarded("rwCommPlacement", [&] {
    comm::Communicator& asked = *checked(comm, "comm").comm;
    checked(json, "json");
    const comm::Machine& machine = asked.machine();
    Json nodes = Json::array();
    for (const topology::NodeIndex node : machine.node_of_rank) {
      nodes.push_back(machine.topology.node(node).id);
    }
    *json = text_of(Json{{"name", machine.topology.name()},
                         {"origin", machine.origin},
                         {"fingerprint", comm::fingerprint(machine)},
                         {"node_of_rank", nodes},
                         {"ring_order", comm::ring_order(machine)}});
  });
}

RW_API rwResult_t rwLaunchDescribe(char** json) {
  return guarded("rwLaunchDescribe", [&] {
    checked(json, "json");
    const bootstrap::LaunchEnvironment found = bootstrap::detect();
    *json = text_of(Json{{"launcher", found.launcher},
                         {"rank", found.rank},
                         {"size", found.size},
                         {"local_rank", found.local_rank},
                         {"local_size", found.local_size}});
  });
}

}  // extern "C"
