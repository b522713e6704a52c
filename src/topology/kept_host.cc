#include "topology/kept_host.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_descriptor.h"
#include "core/first_line.h"
#include "core/log.h"
#include "core/replace_file.h"
#include "topology/json.h"

extern char** environ;

namespace ropewalk::topology {
namespace {

namespace fs = std::filesystem;

// The file: one line, "ropewalk-host 1 STATE BYTES DIGEST", and behind it the JSON text.
constexpr std::string_view kMagic = "ropewalk-host ";
constexpr std::string_view kVersion = "1 ";

// Names in a folder, sorted; none where it cannot be read.
std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (auto it = fs::directory_iterator(folder, ignored); it != fs::directory_iterator();
       it.increment(ignored)) {
    names.push_back(it->path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Other builds may discover differently. The file with this code: the library or a program.
std::string build() {
  Dl_info info{};
  struct stat found {};
  if (dladdr(reinterpret_cast<const void*>(&kept_host_file), &info) == 0 ||
      stat(info.dli_fname, &found) != 0) {
    return {};
  }
  return fmt::format("{}.{} {}", found.st_mtim.tv_sec, found.st_mtim.tv_nsec, found.st_size);
}

// Those of NVIDIA's GPUs that this process may open. A control group refuses others here, too.
std::string usable_gpus(const fs::path& root) {
  std::string usable;
  for (const std::string& name : names_in(root / "dev")) {
    if (!name.starts_with("nvidia")) continue;
    if (access((root / "dev" / name).c_str(), R_OK | W_OK) == 0) usable += name + " ";
  }
  return usable;
}

std::string adapters(const fs::path& root) {
  std::string found;
  const fs::path nets = root / "sys/class/net";
  for (const std::string& name : names_in(nets)) {
    // What hangs on no bus is no NIC of a topology, and comes and goes with containers.
    if (access((nets / name / "device").c_str(), F_OK) != 0) continue;
    found += name + "=" + first_line(nets / name / "operstate") + " ";
  }
  const fs::path verbs = root / "sys/class/infiniband";
  for (const std::string& name : names_in(verbs)) {
    found += name + "=" + first_line(verbs / name / "ports/1/state") + " ";
  }
  return found;
}

std::string host_name_in_paths() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "host";
  std::string text = name.data();
  std::ranges::replace(text, '/', '-');
  return text.substr(0, 64);
}

bool hwloc_is_told() {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (std::string_view(*entry).starts_with("HWLOC_")) return true;
  }
  return false;
}

std::string first_words(const std::string& state, std::string_view text) {
  return fmt::format("{}{}{} {} {}\n", kMagic, kVersion, state, text.size(), digest_text(text));
}

// @return the text; nothing, with the reason in `why`, for a file that does not count
std::optional<std::string> read(const fs::path& path, const std::string& state, std::string& why) {
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!file) {
    if (errno != ENOENT && errno != ENOTDIR) why = std::system_category().message(errno);
    return std::nullopt;
  }
  struct stat found {};
  if (fstat(file.get(), &found) != 0 || !S_ISREG(found.st_mode) || found.st_uid != geteuid() ||
      (found.st_mode & (S_IWGRP | S_IWOTH)) != 0) {
    why = "it is not a file that this user alone may write";
    return std::nullopt;
  }
  if (found.st_size < 0 || static_cast<std::size_t>(found.st_size) > kMaxFileBytes) {
    why = "it is too long";
    return std::nullopt;
  }
  std::string all(static_cast<std::size_t>(found.st_size), '\0');
  std::size_t length = 0;
  while (length < all.size()) {
    const ssize_t count = ::read(file.get(), all.data() + length, all.size() - length);
    if (count <= 0) break;
    length += static_cast<std::size_t>(count);
  }
  all.resize(length);
  if (!all.starts_with(kMagic)) {
    why = "it is none that Ropewalk wrote";
    return std::nullopt;
  }
  if (!all.substr(kMagic.size()).starts_with(kVersion)) {
    why = "it is of another version";
    return std::nullopt;
  }
  const std::size_t end = all.find('\n');
  std::string text = end == std::string::npos ? std::string() : all.substr(end + 1);
  const std::size_t state_at = kMagic.size() + kVersion.size();
  if (all.substr(0, end == std::string::npos ? 0 : end + 1) !=
      first_words(all.substr(state_at, state.size()), text)) {
    why = "it is not whole";
    return std::nullopt;
  }
  if (all.substr(state_at, state.size()) == state) return text;
  log::info(log::kGraph, "{}: the host has changed since: looking again", path.string());
  return std::nullopt;
}

void make_private_folders(const fs::path& folder) {
  std::error_code ignored;
  if (folder.empty() || fs::exists(folder, ignored)) return;
  if (folder.has_parent_path() && folder.parent_path() != folder) {
    make_private_folders(folder.parent_path());
  }
  mkdir(folder.c_str(), S_IRWXU);
}

void write(const fs::path& path, const std::string& state, std::string_view text) {
  make_private_folders(path.parent_path());
  const int failed = replace_file(path, first_words(state, text).append(text), 0600);
  if (failed == 0) return;
  log::info(log::kGraph, "cannot keep this host's topology in {}: {}", path.string(),
            std::system_category().message(failed));
}

std::string found_now(const DiscoverOptions& options) { return write_json(discover(options)); }

}  // namespace

HostFingerprint host_fingerprint(const fs::path& root) {
  const std::string gpus = usable_gpus(root);
  std::string state = first_line(root / "proc/sys/kernel/random/boot_id");
  for (const std::string& name : names_in(root / "sys/bus/pci/devices")) state += " " + name;
  for (const char* list : {"cpu/online", "node/online"}) {
    state += "\n" + first_line(root / "sys/devices/system" / list);
  }
  state += "\n" + gpus + "\n" + adapters(root) + "\n" + build();
  return {digest_text(host_name_in_paths() + "\n" + gpus), digest_text(state)};
}

fs::path kept_host_file(const fs::path& folder, const HostFingerprint& fingerprint) {
  return folder / fmt::format("host-{}-{}.topology", host_name_in_paths(), fingerprint.view);
}

HostGraph KeptHost::graph(const fs::path& folder) {
  if (hwloc_is_told()) return {found_now(options_), "found"};
  const HostFingerprint fingerprint = host_fingerprint(options_.root);
  const fs::path path = folder.empty() ? fs::path() : kept_host_file(folder, fingerprint);
  const Lock lock(mutex_);
  Known& known = known_[path.string()];
  if (known.state == fingerprint.state) return known.graph;
  std::string why;
  std::optional<std::string> text;
  if (!path.empty()) text = read(path, fingerprint.state, why);
  if (!why.empty()) log::warn("{}: {}; looking at this host again", path.string(), why);
  if (text) {
    known.graph = {std::move(*text), "kept in " + path.string()};
  } else {
    known.graph = {found_now(options_), "found"};
    if (!path.empty()) write(path, fingerprint.state, known.graph.text);
  }
  known.state = fingerprint.state;
  return known.graph;
}

}  // namespace ropewalk::topology
