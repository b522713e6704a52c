// What libraries that stand in for others have in common: how they are told what to be like, and
// how they find the functions of the library below them.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

namespace stand_in {

/// Calls `take(name, value)` for each entry of a comma list of NAME or NAME=VALUE.
template <typename Take>
void for_each_entry(const std::string& text, Take&& take) {
  std::istringstream entries(text);
  for (std::string entry; std::getline(entries, entry, ',');) {
    const std::size_t equals = entry.find('=');
    const std::string name = entry.substr(0, equals);
    if (name.empty()) continue;
    take(name, equals == std::string::npos ? "" : entry.substr(equals + 1));
  }
}

/// Ends the program where `library` has no such function.
template <typename Function>
void find(void* library, Function& function, const char* name) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) {
    std::fprintf(stderr, "stand-in: no %s\n", name);
    std::abort();
  }
}

}  // namespace stand_in
