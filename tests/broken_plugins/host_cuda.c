/* Stands in for libcuda.so.1 where GPU memory may be the host's: what check-plugin calls, so that
 * its rules about GPU memory run, and are seen to fail, without a GPU. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
enum { kGpus = 2 };

EXPORT int cuInit(unsigned flags) {
  (void)flags;
  return 0;
}
EXPORT int cuDeviceGetCount(int* count) {
  *count = kGpus;
  return 0;
}
EXPORT int cuDeviceGet(int* device, int number) {
  *device = number;
  return number < 0 || number >= kGpus;
}
EXPORT int cuDevicePrimaryCtxRetain(void** context, int device) {
  static int contexts[kGpus];
  *context = &contexts[device];
  return 0;
}
EXPORT int cuCtxSetCurrent(void* context) { return context == NULL; }
EXPORT int cuCtxSynchronize(void) { return 0; }
EXPORT int cuMemAlloc_v2(uint64_t* memory, size_t bytes) {
  void* taken = malloc(bytes);
  *memory = (uint64_t)(uintptr_t)taken;
  return taken == NULL;
}
EXPORT int cuMemFree_v2(uint64_t memory) {
  free((void*)(uintptr_t)memory);
  return 0;
}
EXPORT int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  memcpy((void*)(uintptr_t)to, from, bytes);
  return 0;
}
EXPORT int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  memcpy(to, (const void*)(uintptr_t)from, bytes);
  return 0;
}
