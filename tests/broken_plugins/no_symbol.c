/* A library that is no network plugin. */
__attribute__((visibility("default"))) int ncclTunerPlugin_v4;
