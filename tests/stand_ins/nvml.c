/* Stands in for NVIDIA's management library: two GPUs, each with two NVLinks to an NVSwitch and one
 * to the other GPU. Built as a library that is opened at run time, as the real one. */
#include <stdio.h>
#include <string.h>

typedef struct {
  char bus_id_legacy[16];
  unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
} Pci;

#define EXPORT __attribute__((visibility("default")))
enum { kOk = 0, kNotFound = 6, kGpus = 2 };

static int handles[kGpus] = {0, 1};
static const char* const bus_ids[kGpus] = {"00000000:13:00.0", "00000000:14:00.0"};

EXPORT int nvmlInit_v2(void) { return kOk; }
EXPORT int nvmlShutdown(void) { return kOk; }
EXPORT const char* nvmlErrorString(int result) { return result == kOk ? "ok" : "not ok"; }
EXPORT int nvmlDeviceGetCount_v2(unsigned int* count) {
  *count = kGpus;
  return kOk;
}
EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void** device) {
  if (index >= kGpus) return kNotFound;
  *device = &handles[index];
  return kOk;
}
EXPORT int nvmlDeviceGetPciInfo_v3(void* device, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  strcpy(pci->bus_id, bus_ids[*(int*)device]);
  return kOk;
}
EXPORT int nvmlDeviceGetName(void* device, char* name, unsigned int size) {
  (void)device;
  snprintf(name, size, "Stand-in H100");
  return kOk;
}
EXPORT int nvmlDeviceGetCudaComputeCapability(void* device, int* major, int* minor) {
  (void)device;
  *major = 9;
  *minor = 0;
  return kOk;
}
EXPORT int nvmlDeviceGetMaxPcieLinkGeneration(void* device, unsigned int* gen) {
  (void)device;
  *gen = 5;
  return kOk;
}
EXPORT int nvmlDeviceGetMaxPcieLinkWidth(void* device, unsigned int* width) {
  (void)device;
  *width = 16;
  return kOk;
}
EXPORT int nvmlDeviceGetNvLinkState(void* device, unsigned int link, unsigned int* active) {
  (void)device;
  if (link > 3) return kNotFound;
  *active = link < 3; /* the fourth is off */
  return kOk;
}
EXPORT int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* device, unsigned int link, Pci* pci) {
  memset(pci, 0, sizeof *pci);
  strcpy(pci->bus_id, link < 2 ? "00000000:C4:00.0" : bus_ids[1 - *(int*)device]);
  return kOk;
}
EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(void* device, unsigned int link,
                                               unsigned int* type) {
  (void)device;
  *type = link < 2 ? 2 : 0;
  return kOk;
}

/* Load, for `ropewalk trace`: GPU i is busy for 25 (i + 1) %, and each question finds its counters
 * 1 MiB (NVLink, received: 2 MiB) and 3 MB (PCIe, received: 4 MB) further. */
typedef struct {
  unsigned int gpu, memory;
} Utilization;
typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned int field, scope;
  long long timestamp, latency;
  int type, result;
  union {
    double as_double;
    unsigned long long as_long;
  } value;
} FieldValue;

EXPORT int nvmlDeviceGetUtilizationRates(void* device, Utilization* utilization) {
  utilization->gpu = 25u * ((unsigned int)*(int*)device + 1u);
  utilization->memory = 10;
  return kOk;
}
EXPORT int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  memory->total = 80ull << 30;
  memory->used = ((unsigned long long)*(int*)device + 1ull) << 30;
  memory->free = memory->total - memory->used;
  return kOk;
}
EXPORT int nvmlDeviceGetFieldValues(void* device, int count, FieldValue* values) {
  static unsigned long long asked[kGpus];
  const unsigned long long times = ++asked[*(int*)device];
  for (int i = 0; i < count; ++i) {
    FieldValue* value = &values[i];
    const int all_links = value->scope == 0xffffffffu;
    value->type = 3; /* unsigned long long */
    value->result = kOk;
    if (value->field == 138 && all_links) {
      value->value.as_long = times * 1024; /* KiB */
    } else if (value->field == 139 && all_links) {
      value->value.as_long = times * 2048;
    } else if (value->field == 197) {
      value->value.as_long = times * 3000000;
    } else if (value->field == 198) {
      value->value.as_long = times * 4000000;
    } else {
      value->result = 3; /* not supported */
    }
  }
  return kOk;
}
