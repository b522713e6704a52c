// What ranks leave behind in /dev/shm.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <string>

namespace ropewalk::testing {

/// Whether tests that run at the same time make names like this: by libpsm2, by libfabric (which
/// begin with the number of its process), by the software bridges.
inline bool is_of_other_tests(const std::string& name) {
  if (name.starts_with(std::to_string(getpid()) + ":")) return false;
  return name.starts_with("psm") || name.starts_with("software-sisci") ||
         std::isdigit(static_cast<unsigned char>(name.front())) != 0;
}

/// What is there without those of other tests.
inline std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  if (DIR* folder = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (!is_of_other_tests(name)) names.insert(name);
    }
    closedir(folder);
  }
  return names;
}

/// Those that were not there `before`. Other programs' names may have gone meanwhile.
inline std::set<std::string> new_shared_memory_names(const std::set<std::string>& before) {
  const std::set<std::string> now = shared_memory_names();
  std::set<std::string> made;
  std::ranges::set_difference(now, before, std::inserter(made, made.end()));
  return made;
}

}  // namespace ropewalk::testing
