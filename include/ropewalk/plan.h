/* Ropewalk's C API: plans of collectives on described machines.
 *
 * A plan says which trees carry which share of a collective's data over which links, at which rate,
 * and which bound no schedule can exceed. Topologies are JSON texts of the schema "gpu-topology/1"
 * (topology.h), plans of the schema "ropewalk-plan/1" (docs/planning.md). All functions are pure:
 * no device, clock or environment. What they give is the caller's, for rwFreeText.
 *
 * Results are those of ropewalk.h; rwInvalidArgument has a text (rwGetLastError(NULL)). Threads:
 * any number at once.
 */
#ifndef ROPEWALK_PLAN_H_
#define ROPEWALK_PLAN_H_

#include <ropewalk/ropewalk.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A plan. `request` is a JSON object; all but "collective" may be left out:
 *   "collective"      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"
 *   "plane"           a plane of the topology; "" for all links
 *   "gpus"            list of the topology's ranks; all GPUs when empty
 *   "root"            rank of the plan, for broadcast and reduce
 *   "algorithm"       a name that rwPlanAlgorithms lists, or "auto"
 *   "trees_per_root"  the number of trees of every root (packed: the most in all); 0 for any number
 *   "trees"           false leaves "trees" out of the result, which may be long
 *   "check"           true adds "certificate", as of rwPlanCheck */
RW_API rwResult_t rwPlanMake(const char* topology, const char* request, char** json);

/* The bound alone: {"bound_gbps", "bound", "bottleneck"}. */
RW_API rwResult_t rwPlanBound(const char* topology, const char* request, char** json);

/* Checks a plan's text by code that shares nothing with the planner: {"valid", "bound_holds",
 * "optimal", "largest_load", "defects"}. A plan that is wrong is a result, not an error; a text
 * that is no plan for this topology is an error. */
RW_API rwResult_t rwPlanCheck(const char* topology, const char* plan, char** json);

/* The time of a plan for messages of sizes: a JSON list of microseconds for a JSON list of bytes.
 */
RW_API rwResult_t rwPlanTimes(const char* topology, const char* plan, const char* bytes,
                              char** json);

/* JSON list of the algorithms: name, help, collectives. */
RW_API rwResult_t rwPlanAlgorithms(char** json);

/* How to split `bytes` over classes of links that cannot be one graph, so that all end together.
 * `classes` is a JSON list of {"gbps", "setup_us"}; the result is {"time_us", "bytes": [...]}. */
RW_API rwResult_t rwPlanSplit(const char* classes, double bytes, char** json);

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_PLAN_H_ */
