/* Ropewalk's C API: machines as graphs.
 *
 * A topology is a handle, made from a text, a file, a short string or what this host has, and freed
 * with rwTopologyFree. It is converted to JSON of the schema "gpu-topology/1" (docs/topology.md has
 * every field) and back without loss. The caller frees returned texts with rwFreeText.
 * rwTopologyReadFile reads a file, rwTopologyDiscover examines this host, and rwCommTopology and
 * rwCommPlacement describe a communicator's machine; all others are pure: no device, clock or
 * environment.
 *
 * A topology never changes: functions that change something return a new one, and any number of
 * threads may use one at once. It belongs to no process: a forked child may use and free its copy.
 * Nothing may use it while, or after, it is freed.
 *
 * Results are those of ropewalk.h; rwInvalidArgument has a text that names file, line or JSON path
 * (rwGetLastError(NULL)). What a call gives is set on success only. Threads: any number at once,
 * where nothing else is said. */
#ifndef ROPEWALK_TOPOLOGY_H_
#define ROPEWALK_TOPOLOGY_H_

#include <ropewalk/ropewalk.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rwTopology* rwTopology_t;

/* Frees. Plans and topologies that were made from it stay. NULL is fine. */
RW_API rwResult_t rwTopologyFree(rwTopology_t topology);

/* ---- making one ----------------------------------------------------------------------------- */

/* This host: by hwloc where its library is, Linux' sysfs, and NVML. What could not be seen is in
 * "assumptions", and never an error. */
RW_API rwResult_t rwTopologyDiscover(rwTopology_t* topology);

/* Reads a file's text in any supported format, recognised by its beginning: the JSON itself, NCCL's
 * topology XML (as of NCCL_TOPO_DUMP_FILE, RCCL's too), hwloc's XML. `origin` names it in
 * messages. */
RW_API rwResult_t rwTopologyRead(const char* text, const char* origin, rwTopology_t* topology);

/* The same of a file. Messages call it by its path. One that is not there is rwInvalidArgument, one
 * that this process may not read rwSystemError. */
RW_API rwResult_t rwTopologyReadFile(const char* path, rwTopology_t* topology);

/* A machine from a short string, as "2x(8gpu nvswitch) 8nic" or "dgx-a100". */
RW_API rwResult_t rwTopologySynthetic(const char* description, rwTopology_t* topology);

/* The machines that have names: JSON [{"name", "parts", "help"}]. */
RW_API rwResult_t rwTopologyPresets(char** json);

/* `hosts` copies of a one-host machine, their NICs joined by one network, or by one network for
 * each NIC number of a host (`rails` not 0). */
RW_API rwResult_t rwTopologyReplicate(rwTopology_t topology, int hosts, int rails,
                                      rwTopology_t* made);

/* The machine with the links of one plane only (`plane` NULL: all), and without GPUs that are not
 * in `ranks` (NULL: all); ranks[i] becomes rank i. */
RW_API rwResult_t rwTopologySelect(rwTopology_t topology, const char* plane, const int* ranks,
                                   int nranks, rwTopology_t* made);

/* ---- asking it ------------------------------------------------------------------------------ */

/* The canonical JSON: fields in a fixed order, a node and a link per line. Equal machines have
 * equal texts, and rwTopologyRead of it gives an equal machine. */
RW_API rwResult_t rwTopologyJson(rwTopology_t topology, char** json);

/* The matrix of `nvidia-smi topo -m` for one host, or for all (`host` -1):
 * {"devices": [{"id", "label", "cpus", "numa"}], "cells": [["X", "NV18", ...], ...]}. Cells are X,
 * NV<lanes>, XG<lanes> (xGMI), PIX, PXB, PHB, NODE, SYS, NET, and - for no path but
 * through another GPU. */
RW_API rwResult_t rwTopologyMatrix(rwTopology_t topology, int host, char** json);

/* One host as a file for NCCL_TOPO_FILE: {"text", "notes"}; the notes list invented values and
 * parts that the format cannot express. */
RW_API rwResult_t rwTopologyNcclXml(rwTopology_t topology, int host, char** json);

/* The resources of each of `local_size` ranks on a host, by local rank: [{"gpu", "cpu", "numa",
 * "cpus", "nics", "nic_path"}], ids of nodes; absent is null. */
RW_API rwResult_t rwTopologyPlace(rwTopology_t topology, int host, int local_size, char** json);

/* ---- communicators and launchers ------------------------------------------------------------ */

/* The machine that a communicator's ranks run on: all hosts' topologies as one, found or kept while
 * joining, or what the setting TOPOLOGY names. Equal on all ranks. The caller's, who may keep it
 * beyond `comm`. Local: the other ranks need not call. Not for two threads at once on one `comm`.
 */
RW_API rwResult_t rwCommTopology(rwComm_t comm, rwTopology_t* topology);

/* Where on it the ranks run: {"name", "origin", "fingerprint", "node_of_rank", "ring_order"}.
 * `name` is the topology's; `origin` says where it came from; `fingerprint` is of its text, 16
 * hexadecimal digits; `node_of_rank` has the id of each rank's GPU, without one that of the NUMA
 * node of its cores; `ring_order` has the ranks by host, NUMA node and core. As rwCommTopology. */
RW_API rwResult_t rwCommPlacement(rwComm_t comm, char** json);

/* This process's rank according to the launcher's environment: {"launcher", "rank", "size",
 * "local_rank", "local_size"}; the latter two are -1 if the launcher does not give them. */
RW_API rwResult_t rwLaunchDescribe(char** json);

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_TOPOLOGY_H_ */
