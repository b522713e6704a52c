/* Ropewalk's C API: plans of collectives on described machines.
 *
 * A plan says which trees carry which share of a collective's data over which links, at which rate,
 * and which bound no schedule can exceed. It is a handle, made for a topology (topology.h), which
 * it keeps: the topology may be freed before it. It is freed with rwPlanFree, and converted to JSON
 * of the schema "ropewalk-plan/1" (docs/planning.md) and back. All functions are pure: no device,
 * clock or environment. The caller frees returned texts with rwFreeText.
 *
 * A plan never changes, and any number of threads may use one at once. It belongs to no process: a
 * forked child may use and free its copy. Nothing may use it while, or after, it is freed.
 *
 * Results are those of ropewalk.h; rwInvalidArgument has a text (rwGetLastError(NULL)). What a call
 * gives is set on success only. Threads: any number at once. */
#ifndef ROPEWALK_PLAN_H_
#define ROPEWALK_PLAN_H_

#include <ropewalk/ropewalk.h>
#include <ropewalk/topology.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct rwPlan* rwPlan_t;

/* Frees. NULL is fine. */
RW_API rwResult_t rwPlanFree(rwPlan_t plan);

/* A plan. `request` is a JSON object; all but "collective" may be left out:
 *   "collective"      "all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"
 *   "plane"           a plane of the topology; "" for all links
 *   "gpus"            list of the topology's ranks; all GPUs when empty
 *   "root"            rank of the plan, for broadcast and reduce
 *   "algorithm"       a name that rwPlanAlgorithms lists, or "auto"
 *   "trees_per_root"  the number of trees of every root (packed: the most in all); 0 for any number
 *   "trees"           false forgets the trees, which may take gigabytes: such a plan has its JSON,
 *                     and what "check" found, but no times, schedule or simulation
 *   "check"           true checks it at once: "certificate" in its JSON is what rwPlanCheck gives
 */
RW_API rwResult_t rwPlanMake(rwTopology_t topology, const char* request, rwPlan_t* plan);

/* Reads a plan back for the topology that it was made for, or for the machine as far as the text
 * itself names it (`topology` NULL): GPUs and links, whose latencies are those of their types.
 * `origin` names the text in messages. Rates and loads are computed again from the trees; the text
 * itself proves nothing: see rwPlanCheck. A plan for another topology is rwInvalidArgument, as is a
 * text without trees. */
RW_API rwResult_t rwPlanRead(rwTopology_t topology, const char* text, const char* origin,
                             rwPlan_t* plan);

/* The JSON, with its "trees" or (`trees` 0) without them, which may be long. With them it can be
 * read back by rwPlanRead, for the same topology, which gives a plan with the same text but for a
 * "certificate". A plan that was made without its trees has the JSON without them alone. */
RW_API rwResult_t rwPlanJson(rwPlan_t plan, int trees, char** json);

/* The topology that it is for: a handle of its own, for rwTopologyFree. */
RW_API rwResult_t rwPlanTopology(rwPlan_t plan, rwTopology_t* topology);

/* The bound of a request alone: {"bound_gbps", "bound", "bottleneck"}. */
RW_API rwResult_t rwPlanBound(rwTopology_t topology, const char* request, char** json);

/* Checks a plan by code that shares nothing with the planner: {"valid", "bound_holds", "optimal",
 * "largest_load", "defects"}. A plan that is wrong is a result, not an error. */
RW_API rwResult_t rwPlanCheck(rwPlan_t plan, char** json);

/* Estimates for messages of `count` sizes: microseconds[i] for bytes[i], which are finite and not
 * negative. Nothing is set where any size is refused. */
RW_API rwResult_t rwPlanTimes(rwPlan_t plan, const double* bytes, size_t count,
                              double* microseconds);

/* The text form of the schedule that a plan describes: its trees become channels by weight. */
RW_API rwResult_t rwScheduleFromPlan(rwPlan_t plan, char** text);

/* JSON list of the algorithms: name, help, collectives. */
RW_API rwResult_t rwPlanAlgorithms(char** json);

/* How to split `bytes` over classes of links that cannot be one graph, so that all end together.
 * `classes` is a JSON list of {"gbps", "setup_us"}; the result is {"time_us", "bytes": [...]}. */
RW_API rwResult_t rwPlanSplit(const char* classes, double bytes, char** json);

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_PLAN_H_ */
