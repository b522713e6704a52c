#include "transport/messaging/ofi/shared_file.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "transport/messaging/abandoned_files.h"

namespace ropewalk::transport::ofi {
namespace {

// "1234:0:0": process, domain, endpoint.
bool is_of_kind(std::string_view name) {
  const auto is_of_name = [](char letter) {
    return letter == ':' || (letter >= '0' && letter <= '9');
  };
  return std::count(name.begin(), name.end(), ':') == 2 &&
         std::all_of(name.begin(), name.end(), is_of_name);
}

// The files of this process, and of those that it was forked from. Immortal: threads may close
// endpoints while the process exits.
struct Open {
  std::mutex mutex;
  std::map<std::string, pid_t> files;
};
Open& open_files() {
  static auto* const all = new Open;
  return *all;
}

// Destroyed when the process exits, or this library is unloaded.
struct RemoveAtExit {
  ~RemoveAtExit() {
    Open& open = open_files();
    const std::lock_guard lock(open.mutex);
    for (const auto& [path, process] : open.files) {
      if (process == getpid()) unlink(path.c_str());
    }
  }
};

}  // namespace

SharedFile::SharedFile(std::span<const std::byte> address) {
  std::string_view name(reinterpret_cast<const char*>(address.data()), address.size());
  name = name.substr(0, name.find('\0'));
  if (const std::size_t scheme = name.find("://"); scheme != std::string_view::npos) {
    name.remove_prefix(scheme + 3);
  }
  if (!is_of_kind(name)) return;
  std::string path = messaging::shared_memory_file(name);
  file_ = messaging::claim_file(path);
  if (!file_) return;
  static const RemoveAtExit at_exit;
  Open& open = open_files();
  const std::lock_guard lock(open.mutex);
  open.files.insert_or_assign(path, getpid());
  path_ = std::move(path);
}

SharedFile::~SharedFile() { forget(); }

SharedFile& SharedFile::operator=(SharedFile&& other) noexcept {
  forget();
  path_ = std::exchange(other.path_, {});
  file_ = std::move(other.file_);
  return *this;
}

void SharedFile::forget() noexcept {
  if (path_.empty()) return;
  Open& open = open_files();
  const std::lock_guard lock(open.mutex);
  open.files.erase(path_);
  path_.clear();
}

int remove_abandoned_files() { return messaging::remove_abandoned_files(is_of_kind); }

}  // namespace ropewalk::transport::ofi
