/* A profiler plugin for NCCL with version VERSION alone: the table of the plugin that
 * RW_WHOLE_PROFILER_PLUGIN names. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define JOINED(a, b) a##b
#define NAME(version) JOINED(ncclProfiler_v, version)
#define TEXT_OF(name) #name
#define TEXT(name) TEXT_OF(name)

__attribute__((visibility("default"))) void* NAME(VERSION)[6];

__attribute__((constructor)) static void take_table(void) {
  const char* path = getenv("RW_WHOLE_PROFILER_PLUGIN");
  void* library = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_LOCAL);
  const void* table = library == NULL ? NULL : dlsym(library, TEXT(NAME(VERSION)));
  if (table != NULL) memcpy(NAME(VERSION), table, sizeof NAME(VERSION));
}
