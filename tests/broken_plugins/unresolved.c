/* A plugin that was linked without a library that it needs. */
int rw_in_no_library(void);
__attribute__((visibility("default"))) int ncclNetPlugin_v12(void) { return rw_in_no_library(); }
