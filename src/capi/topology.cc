// Topologies, those of communicators too.
#include "ropewalk/topology.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/launch.h"
#include "capi/guard.h"
#include "capi/handles.h"
#include "capi/planning_handles.h"
#include "comm/communicator.h"
#include "machine/machine.h"
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

RW_API rwResult_t rwTopologyFree(rwTopology_t topology) {
  return guarded("rwTopologyFree", [&] { delete topology; });
}

RW_API rwResult_t rwTopologyDiscover(rwTopology_t* topology) {
  return guarded("rwTopologyDiscover", [&] {
    checked(topology, "topology");
    *topology = new_handle(topology::discover());
  });
}

RW_API rwResult_t rwTopologyRead(const char* text, const char* origin, rwTopology_t* topology) {
  return guarded("rwTopologyRead", [&] {
    checked(topology, "topology");
    *topology =
        new_handle(topology::read_topology(&checked(text, "text"), &checked(origin, "origin")));
  });
}

RW_API rwResult_t rwTopologyReadFile(const char* path, rwTopology_t* topology) {
  return guarded("rwTopologyReadFile", [&] {
    checked(topology, "topology");
    *topology = new_handle(topology::read_file(&checked(path, "path")));
  });
}

RW_API rwResult_t rwTopologySynthetic(const char* description, rwTopology_t* topology) {
  return guarded("rwTopologySynthetic", [&] {
    checked(topology, "topology");
    *topology = new_handle(topology::synthetic(&checked(description, "description")));
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

RW_API rwResult_t rwTopologyReplicate(rwTopology_t topology, int hosts, int rails,
                                      rwTopology_t* made) {
  return guarded("rwTopologyReplicate", [&] {
    checked(made, "made");
    const auto fabric = rails != 0 ? topology::Fabric::kRails : topology::Fabric::kOne;
    *made = new_handle(topology::replicate(machine_of(topology), hosts, fabric));
  });
}

RW_API rwResult_t rwTopologySelect(rwTopology_t topology, const char* plane, const int* ranks,
                                   int nranks, rwTopology_t* made) {
  return guarded("rwTopologySelect", [&] {
    checked(made, "made");
    topology::Topology selected = machine_of(topology);
    if (plane != nullptr) selected = selected.plane(plane);
    if (ranks != nullptr) {
      if (nranks < 0) throw Error(Errc::kInvalidArgument, "nranks: {}", nranks);
      selected = selected.with_gpus(std::vector<int>(ranks, ranks + nranks));
    }
    *made = new_handle(std::move(selected));
  });
}

RW_API rwResult_t rwTopologyJson(rwTopology_t topology, char** json) {
  return guarded("rwTopologyJson", [&] {
    checked(json, "json");
    *json = duplicate(topology::write_json(machine_of(topology)));
  });
}

RW_API rwResult_t rwTopologyMatrix(rwTopology_t topology, int host, char** json) {
  return guarded("rwTopologyMatrix", [&] {
    checked(json, "json");
    const topology::Topology& machine = machine_of(topology);
    if (host < -1 || host >= machine.hosts()) {
      throw Error(Errc::kInvalidArgument, "host {}: {} has {} hosts, numbered from 0", host,
                  machine.name(), machine.hosts());
    }
    const topology::Distances distances(machine);
    *json = text_of(describe(distance_matrix(machine, distances, host), machine));
  });
}

RW_API rwResult_t rwTopologyNcclXml(rwTopology_t topology, int host, char** json) {
  return guarded("rwTopologyNcclXml", [&] {
    checked(json, "json");
    const topology::NcclXml made = topology::write_nccl_xml(machine_of(topology), host);
    *json = text_of(Json{{"text", made.text}, {"notes", made.notes}});
  });
}

RW_API rwResult_t rwTopologyPlace(rwTopology_t topology, int host, int local_size, char** json) {
  return guarded("rwTopologyPlace", [&] {
    checked(json, "json");
    const topology::Topology& machine = machine_of(topology);
    const topology::Distances distances(machine);
    Json found = Json::array();
    for (const auto& each : topology::place_ranks(machine, distances, host, local_size)) {
      found.push_back(describe(each, machine));
    }
    *json = text_of(found);
  });
}

RW_API rwResult_t rwCommTopology(rwComm_t comm, rwTopology_t* topology) {
  return guarded("rwCommTopology", [&] {
    comm::Communicator& asked = *checked(comm, "comm").comm;
    checked(topology, "topology");
    *topology = new_handle(asked.machine().topology);
  });
}

RW_API rwResult_t rwCommPlacement(rwComm_t comm, char** json) {
  return guarded("rwCommPlacement", [&] {
    comm::Communicator& asked = *checked(comm, "comm").comm;
    checked(json, "json");
    const machine::Machine& machine = asked.machine();
    Json nodes = Json::array();
    for (const topology::NodeIndex node : machine.node_of_rank) {
      nodes.push_back(machine.topology.node(node).id);
    }
    *json = text_of(Json{{"name", machine.topology.name()},
                         {"origin", machine.origin},
                         {"fingerprint", machine::fingerprint(machine)},
                         {"node_of_rank", nodes},
                         {"ring_order", machine::ring_order(machine)}});
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
