// A libfabric that is too old: its version is 1.16. The other functions are stubs.
#include <stdint.h>

uint32_t fi_version(void) { return 1U << 16 | 16; }
int fi_getinfo(void) { return -1; }
void fi_freeinfo(void) {}
void* fi_dupinfo(void) { return 0; }
int fi_fabric(void) { return -1; }
const char* fi_strerror(int code) { return code == 0 ? "success" : "error"; }
