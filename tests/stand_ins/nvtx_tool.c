/* Stands in for a tool that takes NVTX's ranges: NVTX loads it by NVTX_INJECTION64_PATH. Each range
 * of a domain becomes a line "DOMAIN push NAME BYTES" or "DOMAIN pop" in the file that
 * RW_STAND_IN_NVTX_LOG names. */
#include <nvtx3/nvToolsExt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE* out;

/* Handles are copies of the names. */
static nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  return (nvtxDomainHandle_t)strdup(name);
}

static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t domain, const char* text) {
  (void)domain;
  return (nvtxStringHandle_t)strdup(text);
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) {
  const int known = event->messageType == NVTX_MESSAGE_TYPE_REGISTERED &&
                    event->payloadType == NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
  pthread_mutex_lock(&mutex);
  fprintf(out, "%s push %s %llu\n", (const char*)domain,
          known ? (const char*)event->message.registered : "?",
          known ? (unsigned long long)event->payload.ullValue : 0ULL);
  fflush(out);
  pthread_mutex_unlock(&mutex);
  return 0;
}

static int NVTX_API pop(nvtxDomainHandle_t domain) {
  pthread_mutex_lock(&mutex);
  fprintf(out, "%s pop\n", (const char*)domain);
  fflush(out);
  pthread_mutex_unlock(&mutex);
  return 0;
}

EXPORT int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table) {
  const NvtxExportTableCallbacks* callbacks =
      (const NvtxExportTableCallbacks*)get_table(NVTX_ETID_CALLBACKS);
  const char* path = getenv("RW_STAND_IN_NVTX_LOG");
  NvtxFunctionTable table;
  unsigned size = 0;
  if (callbacks == NULL || path == NULL) return 0;
  if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
  if (size < NVTX_CBID_CORE2_DomainCreateA) return 0;
  out = fopen(path, "a");
  if (out == NULL) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
  *table[NVTX_CBID_CORE2_DomainRegisterStringA] = (NvtxFunctionPointer)register_string;
  *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
  *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
  return 1;
}
