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

typedef struct rwDeviceWindow {
  const rwDevicePart* parts; /* by rank */
  uint64_t* sent;            /* by peer and slot: what kernels of this rank have signalled */
  uint64_t* awaited;         /* likewise: what they have waited for */
  rwDeviceControl* control;
  rwDeviceEntry* entries; /* of the ring for links, in pinned memory; a power of two of them */
  uint64_t* head;         /* how many entries were taken */
  uint64_t* done_seen;    /* what was last seen of `done`, near the GPU */
  uint64_t* done;         /* how many entries are done, in their order; in pinned memory */
  uint64_t timeout_ns;    /* how long a wait may last; 0: for ever */
  uint32_t num_entries;
  uint32_t number; /* of the window */
  int32_t rank;
  int32_t size;
  int32_t slots;
  int32_t unused;
} rwDeviceWindow;

/* One launch of a batch that waits for it (rwBatchArm). */
typedef struct rwDeviceTrigger {
  uint64_t* word; /* in the GPU's memory */
  uint64_t value;
} rwDeviceTrigger;

#ifdef __cplusplus
}
#endif

#endif
