/* Ropewalk's C API: machines as graphs.
 *
 * A topology is a text: JSON of the schema "gpu-topology/1" (docs/topology.md has every field).
 * Functions take and give such texts; what they give is the caller's, for rwFreeText.
 * rwTopologyDiscover looks at this host, and rwCommTopology and rwCommPlacement tell of a
 * communicator; all others are pure: no device, clock or environment.
 *
 * Results are those of ropewalk.h; rwInvalidArgument has a text that names file, line or JSON path
 * (rwGetLastError(NULL)). Threads: any number at once, where nothing else is said.
 */
#ifndef ROPEWALK_TOPOLOGY_H_
#define ROPEWALK_TOPOLOGY_H_

#include <ropewalk/ropewalk.h>

#ifdef __cplusplus
extern "C" {
#endif

/* This host: by hwloc where its library is, Linux' sysfs, and NVML. What could not be seen is in
 * "assumptions", and never an error. */
RW_API rwResult_t rwTopologyDiscover(char** json);

/* A file's text of any form that can be read, told apart by how it begins: the JSON itself, NCCL's
 * topology XML (as of NCCL_TOPO_DUMP_FILE, RCCL's too), hwloc's XML. `origin` is what messages call
 * it. Gives the canonical JSON: fields in a fixed order. */
RW_API rwResult_t rwTopologyRead(const char* text, const char* origin, char** json);

/* A machine from a short string, as "2x(8gpu nvswitch) 8nic" or "dgx-a100". */
RW_API rwResult_t rwTopologySynthetic(const char* description, char** json);

/* The machines that have names: [{"name", "parts", "help"}]. */
RW_API rwResult_t rwTopologyPresets(char** json);

/* `hosts` copies of a one-host machine, their NICs joined by one network, or by one network for
 * each NIC place (`rails` not 0). */
RW_API rwResult_t rwTopologyReplicate(const char* topology, int hosts, int rails, char** json);

/* The machine with the links of one plane only (`plane` NULL: all), and without GPUs that are not
 * in `ranks` (NULL: all); ranks[i] becomes rank i. */
RW_API rwResult_t rwTopologySelect(const char* topology, const char* plane, const int* ranks,
                                   int nranks, char** json);

/* The matrix of `nvidia-smi topo -m` for one host, or for all (`host` -1):
 * {"devices": [{"id", "label", "cpus", "numa"}], "cells": [["X", "NV18", ...], ...]}. Cells are X,
 * NV<lanes>, XG<lanes> (xGMI), PIX, PXB, PHB, NODE, SYS, NET, and - for no way but
 * through another GPU. */
RW_API rwResult_t rwTopologyMatrix(const char* topology, int host, char** json);

/* One host as a file for NCCL_TOPO_FILE: {"text", "notes"}, notes being what was invented or cannot
 * be said. */
RW_API rwResult_t rwTopologyNcclXml(const char* topology, int host, char** json);

/* What belongs to each of `local_size` ranks on a host, by local rank:
 * [{"gpu", "cpu", "numa", "cpus", "nics", "nic_path"}], ids of nodes; absent is null. */
RW_API rwResult_t rwTopologyPlace(const char* topology, int host, int local_size, char** json);

/* The machine that a communicator's ranks run on: all hosts' topologies as one, found or kept while
 * joining, or what the setting TOPOLOGY names. Equal on all ranks. Local: the other ranks need not
 * call. Not for two threads at once on one `comm`. */
RW_API rwResult_t rwCommTopology(rwComm_t comm, char** json);

/* Where on it the ranks run: {"name", "origin", "fingerprint", "node_of_rank", "ring_order"}.
 * `name` is the topology's; `origin` says where it came from; `fingerprint` is of its text, 16
 * hexadecimal digits; `node_of_rank` has the id of each rank's GPU, without one that of the NUMA
 * node of its cores; `ring_order` has the ranks by host, NUMA node and core. As rwCommTopology. */
RW_API rwResult_t rwCommPlacement(rwComm_t comm, char** json);

/* Which rank the launcher's environment says this process is: {"launcher", "rank", "size",
 * "local_rank", "local_size"}; the latter two -1 where the launcher does not tell. */
RW_API rwResult_t rwLaunchDescribe(char** json);

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_TOPOLOGY_H_ */
