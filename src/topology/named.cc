#include "topology/named.h"

#include <filesystem>
#include <string>
#include <utility>

#include "core/error.h"
#include "topology/read.h"
#include "topology/synthetic.h"

namespace ropewalk::topology {

Topology named(std::string_view file_or_description) {
  const std::string name(file_or_description);
  std::error_code ignored;
  const std::filesystem::file_status status = std::filesystem::status(name, ignored);
  if (std::filesystem::is_directory(status)) {
    throw Error(Errc::kInvalidArgument, "{}: a folder, not a file", name);
  }
  if (!std::filesystem::exists(status)) {
    if (name.ends_with(".json") || name.ends_with(".xml") || name.find('/') != std::string::npos) {
      throw Error(Errc::kInvalidArgument, "{}: no such file", name);
    }
    Description description = synthetic(name).description();
    description.name = name;
    return Topology(std::move(description));
  }
  return read_file(name);
}

}  // namespace ropewalk::topology
