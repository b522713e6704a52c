#include "transport/messaging/abandoned_files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <system_error>

namespace ropewalk::transport::messaging {
namespace {

const std::filesystem::path kFolder = "/dev/shm";
// Without meaning for files.
constexpr mode_t kUsedMark = S_ISVTX;

}  // namespace

std::string shared_memory_file(std::string_view name) { return (kFolder / name).string(); }

FileDescriptor claim_file(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
  if (file.get() < 0) return file;
  // First the lock: whatever has the mark was locked.
  if (flock(file.get(), LOCK_SH | LOCK_NB) == 0) fchmod(file.get(), kUsedMark | S_IRUSR | S_IWUSR);
  return file;
}

int remove_abandoned_files(const std::function<bool(std::string_view name)>& is_of_kind) {
  int removed = 0;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(kFolder, none)) {
    if (!is_of_kind(entry.path().filename().string())) continue;
    const FileDescriptor file(open(entry.path().c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW));
    struct stat about {};
    if (file.get() < 0 || fstat(file.get(), &about) != 0) continue;
    if (about.st_uid != getuid() || (about.st_mode & kUsedMark) == 0) continue;
    if (flock(file.get(), LOCK_EX | LOCK_NB) != 0) continue;
    if (unlink(entry.path().c_str()) == 0) ++removed;
  }
  return removed;
}

}  // namespace ropewalk::transport::messaging
