#include "topology/named.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>

#include "core/error.h"
#include "topology/json.h"
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
  std::ifstream file(name, std::ios::binary);
  if (!file) throw system_error(errno, name);
  std::string text;
  // A pipe has no size that could be looked at before.
  for (std::istreambuf_iterator<char> next(file), end; next != end; ++next) {
    if (text.size() == kMaxFileBytes) {
      throw Error(Errc::kInvalidArgument, "{}: longer than {} bytes", name, kMaxFileBytes);
    }
    text.push_back(*next);
  }
  return read_topology(text, name);
}

}  // namespace ropewalk::topology
