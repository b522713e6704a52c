// A library that calls a function of another: its table of imported functions has an entry for it.
#include <unistd.h>

pid_t who_is_the_parent(void) { return getppid(); }
