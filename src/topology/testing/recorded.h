// For tests: the machines that are kept in tests/topologies.
#pragma once

#include <source_dir.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "topology/json.h"
#include "topology/topology.h"

namespace ropewalk::topology::testing {

/// Where they are.
inline std::filesystem::path machines_folder() {
  return std::filesystem::path(RW_SOURCE_DIR) / "tests" / "topologies";
}

/// A file of that folder.
inline std::string file_text(const std::string& file_name) {
  std::ifstream file(machines_folder() / file_name);
  if (!file) throw std::runtime_error("tests/topologies has no file " + file_name);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Names of all machines that are kept as JSON, sorted: "dgx1v".
inline std::vector<std::string> machine_names() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(machines_folder())) {
    const std::filesystem::path& path = entry.path();
    if (path.extension() == ".json" && path.stem() != "expected-bounds") {
      names.push_back(path.stem());
    }
  }
  std::sort(names.begin(), names.end());
  if (names.empty()) throw std::runtime_error("tests/topologies has no machines");
  return names;
}

inline Topology machine(const std::string& name) {
  return read_json(file_text(name + ".json"), name + ".json");
}

}  // namespace ropewalk::topology::testing
