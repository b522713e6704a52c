// Replacing a function that a loaded library imports by one of ours.
//
// libpsm2 ends the process when a copy from a peer that has just died fails, and counts adapters
// by stat() of files in /dev. Both are calls through its table of imported functions (the global
// offset table of ELF, System V ABI AMD64 supplement, "Global Offset Table"), of which the entry is
// replaced. Calls of other libraries do not change.
#pragma once

namespace ropewalk::transport::psm2 {

/// In the library that dlopen() returned `handle` for: calls of `function` go to `replacement`.
/// Ended when this library is unloaded: the other one may stay.
/// @return whether it imports such a function, and its table could be written
bool intercept(void* handle, const char* function, void* replacement);

}  // namespace ropewalk::transport::psm2
