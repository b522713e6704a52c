// What ranks leave behind in /dev/shm.
#pragma once

#include <dirent.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <string>

namespace ropewalk::testing {

/// Without those of libpsm2, which tests that run at the same time make.
inline std::set<std::string> shared_memory_names() {
  std::set<std::string> names;
  if (DIR* folder = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(folder)) {
      const std::string name = entry->d_name;
      if (!name.starts_with("psm2_shm")) names.insert(name);
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
