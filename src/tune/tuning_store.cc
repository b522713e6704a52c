#include "tune/tuning_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <thread>

#include "core/error.h"
#include "core/file_descriptor.h"
#include "core/log.h"
#include "core/replace_file.h"
#include "tune/processors.h"

namespace ropewalk::tune {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "ropewalk-tuning";

// The entries.
// @param quiet errors were logged at an earlier read
json read_all(const std::string& path, bool quiet = false) {
  std::ifstream file(path);
  if (!file.good()) return json::object();
  const json all = json::parse(file, nullptr, false);
  std::string why;
  if (!all.is_object()) {
    why = "it is not a JSON object";
  } else if (!all.contains("schema") || all["schema"] != kSchema || !all.contains("version") ||
             all["version"] != kTuningVersion) {
    why = fmt::format("it is not a {} of version {}", kSchema, kTuningVersion);
  } else if (!all.contains("entries") || !all["entries"].is_object()) {
    why = "it has no entries";
  } else {
    return all["entries"];
  }
  if (!quiet) log::warn("the tuning file {} is unusable ({}); measuring again", path, why);
  return json::object();
}

// Held from reading the file to replacing it. Without it, as where the folder cannot be written,
// the last of several writers wins.
FileDescriptor lock_of(const std::string& path) {
  FileDescriptor file(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  for (int turn = 0; file && turn < 1000; ++turn) {
    if (flock(file.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return file;
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

double constant_of(const json& entry, const char* key, bool zero_allowed) {
  const double value = entry.at(key).get<double>();
  if ((value > 0 && value < 1e15) || (zero_allowed && value == 0)) return value;
  throw Error(Errc::kInvalidArgument, "its {} is {}", key, value);
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
  const FileDescriptor lock = lock_of(path);
  json entries = read_all(path, true);
  entries[name] = entry;
  const json all = {{"schema", kSchema}, {"version", kTuningVersion}, {"entries", entries}};
  if (const int failed = replace_file(path, all.dump(2) + '\n', 0666); failed != 0) {
    log::warn("cannot write the tuning file {}: {}", path, std::system_category().message(failed));
  }
}

}  // namespace ropewalk::tune
