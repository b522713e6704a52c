#include "tune/tuning_store.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "core/log.h"
#include "core/replace_file.h"
#include "tune/processors.h"

namespace ropewalk::tune {
namespace {

using nlohmann::json;

json read_all(const std::string& path) {
  std::ifstream file(path);
  if (!file.good()) return json::object();
  json all = json::parse(file, nullptr, false);
  if (all.is_object()) return all;
  log::warn("the tuning file {} is no JSON object; measuring again", path);
  return json::object();
}

}  // namespace

std::string machine_name() {
  std::array<char, 65> host{};
  gethostname(host.data(), host.size() - 1);
  // The processor too: virtual machines keep their names and move, or many have the same one.
  return fmt::format("{}/{}/{}", host.data(), sysconf(_SC_NPROCESSORS_ONLN), processor_kind());
}

std::optional<json> read_tuning(const std::string& path, const std::string& name) {
  json all = read_all(path);
  const auto mine = all.find(name);
  if (mine == all.end()) return std::nullopt;
  return std::move(*mine);
}

json tuning_within(const std::string& path, const std::string& name) {
  json found = json::object();
  const json all = read_all(path);
  for (const auto& [key, entry] : all.items()) {
    if (key.starts_with(name + "/")) found[key.substr(name.size() + 1)] = entry;
  }
  return found;
}

void write_tuning(const std::string& path, const std::string& name, const json& entry) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  json all = read_all(path);
  all[name] = entry;
  if (const int failed = replace_file(path, all.dump(2) + '\n', 0666); failed != 0) {
    log::warn("cannot write the tuning file {}: {}", path, std::system_category().message(failed));
  }
}

}  // namespace ropewalk::tune
