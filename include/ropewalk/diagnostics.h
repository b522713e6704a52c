/* Ropewalk's C API: what tools measure, try and compute, and programs that communicate do not need.
 *
 * Behind `ropewalk bench`, `p2p`, `doctor`, `simulate`, `nccl-env`, `microbench` and `config
 * --tuning`. Results are those of ropewalk.h, and so are errors and their texts; texts that
 * functions give are the caller's, for rwFreeText.
 */
#ifndef ROPEWALK_DIAGNOSTICS_H_
#define ROPEWALK_DIAGNOSTICS_H_

#include <ropewalk/plan.h>
#include <ropewalk/ropewalk.h>
#include <ropewalk/topology.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- records of calls ------------------------------------------------------------------------ */

/* What `comm` was last asked to do and when each operation was scheduled, started and
 * completed (settings TRACE, TRACE_RECORDS). *json, for rwFreeText: schema "ropewalk-calls",
 * version 1, communicator, rank, ranks, host, process, written_ns, begun (operations so far),
 * failure (null, or why the communicator is broken) and records[], the oldest first: id, call
 * (the number of a collective on its communicator, from 1, the same on all ranks; null of a
 * message), operation, count, type, op, root, peer, algorithm, memory ("host", "GPU"), state
 * ("scheduled", "started", "completed"), scheduled_ns, started_ns, completed_ns
 * (CLOCK_REALTIME, null: not yet), timed (false: of this operation on a GPU scheduled_ns alone is
 * known), links[] (what this rank sends in it: to (a rank) and bytes; null where that is not
 * known). Also links[]: what this rank has sent, to (a rank), over (a kind of link) and bytes.
 * Local. Any thread, also while another one is in a call. Waits up to 10 ms in a communicator's
 * first ones, for the rate of the processor's clock. */
RW_API rwResult_t rwCommCallRecords(rwComm_t comm, char** json);

/* ---- measuring ------------------------------------------------------------------------------ */

/* A timed loop inside the library, so that the caller's language adds nothing to it. */
typedef struct {
  size_t size; /* sizeof(rwMeasureSpec_t), for later growth */
  const char* collective;
  size_t count; /* as in the collective's call */
  rwDataType_t type;
  rwRedOp_t op; /* of reducing collectives; rwNumOps: pre-multiplied sum, by scalars of its own */
  int root;     /* -1: every rank in turn */
  int in_place;
  int warmup;     /* iterations before */
  int iterations; /* timed */
  int operations; /* in each iteration, one after the other; 0 is 1 */
  int check;      /* number of verified rounds after the timed loop, with fresh data */
  int barrier; /* 1: after each operation, its time counts; 3: after each iteration, its time does
                  not count (nccl-tests' -z) */
  size_t unalign;            /* buffers begin this number of elements after the start of a page */
  double* iteration_seconds; /* NULL, or takes `iterations` numbers: the seconds per operation in
                                each iteration of this rank */
  int device; /* 0: host memory; 1: memory of the rank's GPU, on a stream of its own */
  int graphs; /* with `device`: capture all iterations in a CUDA graph and time this many launches
               * of it; 0: enqueue each operation */
  int registered; /* with `device`: 1 registers input and output first (rwCommWindowRegister) */
  size_t region;  /* each operation uses the memory after that of the one before, cyclically, within
                   * this number of bytes for the input and as many for the output, so that data
                   * comes from memory; 0: all operations use the same memory, and data comes from
                   * caches that hold it */
  size_t period;  /* all_reduce, broadcast and reduce on host memory, out of place: buffers of a
                   * multiple of so many bytes (itself one of 65536) show the same memory each
                   * period, so that long messages need little of it; the output of rank 0 (of a
                   * reduce, the root) is whole, and verified whole, of the others' what was written
                   * last in each period. 0: all buffers are whole */
} rwMeasureSpec_t;

typedef struct {
  double seconds_avg; /* per operation: mean over iterations, then mean over ranks */
  double seconds_min; /* smallest and largest mean of a rank */
  double seconds_max;
  double seconds_rank0; /* mean of rank 0 */
  uint64_t wrong;       /* elements that differ from the expected value, over all ranks */
  char algorithm[32];   /* what ran */
} rwMeasureResult_t;

/* Collective: all ranks of `comm` call with equal specs. Every rank gets the same result. Inputs
 * are small integers, so that every order of reduction gives the same bits. */
RW_API rwResult_t rwMeasure(rwComm_t comm, const rwMeasureSpec_t* spec, rwMeasureResult_t* result);
/* The same for `ncomms` different ranks of one communicator, of which this thread makes each call
 * in one group. Other threads and processes call for their ranks, with any number of them.
 * iteration_seconds are those of the group. Invalid `comms` or `spec` change nothing; after any
 * other error all of `comms` are broken, so that none waits for another. */
RW_API rwResult_t rwMeasureGroup(const rwComm_t* comms, int ncomms, const rwMeasureSpec_t* spec,
                                 rwMeasureResult_t* result);

/* ---- trying --------------------------------------------------------------------------------- */

/* Bandwidth and latency between all GPUs that this process sees, and between each and the host, as
 * JSON: gpus[], peer_access[][], matrices[], host[]. Copies are of `bytes`, a multiple of 16, and
 * timed over `repetitions`. Switches peer access on and off: for processes in which no communicator
 * has a GPU. */
RW_API rwResult_t rwMeasurePeers(size_t bytes, int repetitions, char** json);

/* Tries one path of this machine by moving data over it. `request` is JSON: {"path": "list"}, which
 * gives interfaces[], gpus[] and why_no_gpu, or {"path": PATH, "name": TEXT, "devices": [N...]}
 * with PATH one of shared-memory, interface (name), rdma, sisci, gpu (one device), gpu-pair (two),
 * which gives checks[]: what, outcome (passed, degraded, failed, skipped), found, cause, gbps,
 * latency_us. Forks, and a broken driver may hold it for ever: for a process of its own, of one
 * thread. */
RW_API rwResult_t rwProbe(const char* request, char** json);

/* JSON of the cost model's constants for this machine, measured when `measure` is not 0 and they
 * are not yet known: constants, file, and for each collective the choice per size. */
RW_API rwResult_t rwTuningDescribe(int nranks, int measure, char** json);

/* ---- computing ------------------------------------------------------------------------------ */

/* Pure: no device, clock or environment. Threads: any number at once. */

/* How long a plan takes on its topology, and how busy each link is meanwhile, by the built-in
 * flow-level engine. `request` is JSON: {"bytes": N, "chunk_bytes": N, "most_messages": N,
 * "paced": BOOL}, all optional; the report too (docs/simulation.md has the fields of both). */
RW_API rwResult_t rwSimulatePlan(rwPlan_t plan, const char* request, char** report);
/* The same for a schedule's text form, whose messages take the paths that a library without a plan
 * would take. rwInvalidUsage where the checker refuses it. */
RW_API rwResult_t rwSimulateSchedule(const char* schedule, rwTopology_t topology,
                                     const char* request, char** report);

/* Which NIC serves which channel of a topology: the published rules and the balanced one,
 * what each reaches, the graph file for NCCL, the environment to set. `request` is JSON:
 * {"host": N, "measured": {NIC: GB/s}, "channels": N, "one_rail": BOOL, "graph": TEXT}, all
 * optional; the report too (docs/nic-balance.md has the fields). */
RW_API rwResult_t rwNicReport(rwTopology_t topology, const char* request, char** report);

/* The text form of a micro-benchmark: `pattern` is "chain", "fan-in", "fan-out", "mimo" or
 * "multi-chain", `test` is "forward", "reduce-forward" or "reduce-broadcast". `width` counts
 * sources, sinks, leaves or chains, `length` the ranks of a chain; values that a pattern does not
 * use are ignored. */
RW_API rwResult_t rwScheduleMicrobench(const char* pattern, const char* test, int width, int length,
                                       char** text);

#ifdef __cplusplus
}
#endif

#endif /* ROPEWALK_DIAGNOSTICS_H_ */
