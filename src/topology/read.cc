#include "topology/read.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/error.h"
#include "topology/hwloc_xml.h"
#include "topology/json.h"
#include "topology/nccl_xml.h"

namespace ropewalk::topology {

Topology read_topology(std::string_view text, std::string_view origin) {
  const auto first = std::find_if_not(text.begin(), text.end(),
                                      [](unsigned char c) { return std::isspace(c) != 0; });
  if (first == text.end()) throw Error(Errc::kInvalidArgument, "{}: empty", origin);
  if (*first == '{') return read_json(text, origin);
  if (*first != '<') {
    throw Error(Errc::kInvalidArgument,
                "{}: line 1: neither a topology in JSON nor NCCL's or hwloc's XML", origin);
  }
  const std::size_t hwloc = text.find("<topology");
  const std::size_t nccl = text.find("<system");
  if (hwloc < nccl) return read_hwloc_xml(text, origin);
  return read_nccl_xml(text, origin);
}

Topology read_file(const std::string& path) {
  const auto refuse = [&](int code) {
    throw Error(Errc::kInvalidArgument, "{}: {}", path, std::generic_category().message(code));
  };
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) refuse(EISDIR);
  std::ifstream file(path, std::ios::binary);
  if (!file && errno == ENOENT) refuse(errno);
  if (!file) throw system_error(errno, path);
  std::string text;
  // A pipe has no size that could be checked before.
  constexpr std::size_t kBlock = 64 << 10;
  while (file) {
    const std::size_t before = text.size();
    text.resize(before + kBlock);
    file.read(text.data() + before, kBlock);
    text.resize(before + static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMaxFileBytes) {
      throw Error(Errc::kInvalidArgument, "{}: longer than {} bytes", path, kMaxFileBytes);
    }
  }
  if (text.find('\0') != std::string::npos) {
    throw Error(Errc::kInvalidArgument, "{}: not a text file", path);
  }
  return read_topology(text, path);
}

}  // namespace ropewalk::topology
