/* A window as kernels use it: plain data, which a kernel takes as an argument. The functions over
 * it are in device.cuh, and rwWindowDevice gives it. The fields are for those functions. */
#ifndef ROPEWALK_DEVICE_WINDOW_H_
#define ROPEWALK_DEVICE_WINDOW_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* One rank's part, as this rank's GPU addresses it. */
typedef struct rwDevicePart {
  unsigned char* data;    /* NULL where a link carries what is for it */
  uint64_t bytes;         /* as that rank gave it */
  uint64_t* signals;      /* its counters, each the first of 8 words, by source rank and slot */
  uint64_t* host_signals; /* the same once more, for the owner's host; NULL: there is one only */
  /* This rank's own counters of what that one signals, by slot, likewise of 8 words each: in pinned
   * memory of the host where a link carries them, whose thread counts. */
  const uint64_t* arrived;
} rwDevicePart;

/* What a kernel asks a link for: words whose top byte says in which lap of the ring they were
 * written, so that they need no order among themselves. The library's thread reads them. */
typedef struct rwDeviceEntry {
  uint64_t words[8];
} rwDeviceEntry;

/* Why kernels stopped, for the host; and the host's word that they must. In pinned memory. */
typedef struct rwDeviceControl {
  uint32_t abort;  /* not 0: waits end */
  uint32_t reason; /* what the first wait that failed says: ropewalk::device::Status */
  int32_t peer;
  int32_t slot;
} rwDeviceControl;

/* Messages between kernels of this rank and of one peer, on one slot (rwWindowCreateQueues): rings
 * of lines of 16 bytes, each {data, number, data, number} of four 32-bit words, where number says
 * in which lap of the ring the line was written. So a line says by itself that it is there: eight
 * bytes of data need one store of 16, and nothing orders the lines among themselves. */
typedef struct rwDeviceQueue {
  uint32_t* out; /* lines for that peer: in its GPU's memory, or in pinned memory, where */
                 /* a thread of the library reads them for a link */
  const uint64_t* out_taken; /* how many of those the peer has taken */
  uint32_t* in;              /* lines of that peer, in this GPU's memory, or in pinned memory */
  uint64_t* in_taken;        /* where this rank tells how many of these it has taken */
} rwDeviceQueue;

/* How far a queue is; in this GPU's memory. Lines are counted from the window's beginning. */
typedef struct rwDeviceQueueCounts {
  uint64_t sent;
  uint64_t room; /* up to where lines may be written, as known */
  uint64_t taken;
  uint64_t told; /* how many of them the peer was told */
} rwDeviceQueueCounts;

typedef struct rwDeviceWindow {
  const rwDevicePart* parts; /* by rank */
  uint64_t* sent;            /* by peer and slot: what kernels of this rank have signalled */
  uint64_t* awaited;         /* likewise: what they have waited for */
  rwDeviceControl* control;
  rwDeviceEntry* entries;      /* of the ring for links, in pinned memory; a power of two of them */
  uint64_t* head;              /* how many entries were taken */
  uint64_t* done_seen;         /* what was last seen of `done`, near the GPU */
  uint64_t* done;              /* how many entries are done, in their order; in pinned memory */
  const rwDeviceQueue* queues; /* by peer and slot; NULL: the window has none */
  rwDeviceQueueCounts* queue_counts; /* likewise */
  uint64_t timeout_ns;               /* how long a wait may last; 0: for ever */
  uint32_t num_entries;
  uint32_t number; /* of the window */
  int32_t rank;
  int32_t size;
  int32_t slots;
  uint32_t log2_lines; /* of how many lines a queue has */
} rwDeviceWindow;

/* A put of a prepared batch as kernels do it (rwBatchDevice). */
typedef struct rwDeviceBatchPut {
  unsigned char* to; /* NULL where a link carries it, by the last three */
  const unsigned char* from;
  uint64_t bytes;
  const rwDeviceWindow* window;
  uint64_t offset;
  int32_t peer;
  int32_t unused;
} rwDeviceBatchPut;

/* A signal of it, or a wait for signals. */
typedef struct rwDeviceBatchCount {
  uint64_t* counted;   /* this rank's count of what was signalled, or waited for */
  uint64_t* word;      /* the counter to raise, or to look at; NULL: a link signals */
  uint64_t* host_word; /* the same once more, for the peer's host; NULL: there is one only */
  uint64_t count;
  const rwDeviceWindow* window;
  int32_t peer;
  int32_t slot;
} rwDeviceBatchCount;

/* A prepared batch as kernels launch it: its puts, then its signals, then its waits. */
typedef struct rwDeviceBatch {
  const rwDeviceBatchPut* puts;
  const rwDeviceBatchCount* signals;
  const rwDeviceBatchCount* waits;
  uint32_t num_puts;
  uint32_t num_signals;
  uint32_t num_waits;
  uint32_t lanes;    /* a power of two: how many threads share a put */
  uint32_t may_fail; /* it waits, or a link carries some of it */
  uint32_t unused;
} rwDeviceBatch;

/* One launch of a batch that waits for it (rwBatchArm). */
typedef struct rwDeviceTrigger {
  uint64_t* word; /* in the GPU's memory */
  uint64_t value;
} rwDeviceTrigger;

#ifdef __cplusplus
}
#endif

#endif
