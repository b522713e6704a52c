#include "core/replace_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <span>
#include <string>

#include "core/file_descriptor.h"
#include "core/random.h"

namespace ropewalk {
namespace {

bool write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t count = write(fd, text.data(), text.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

}  // namespace

int replace_file(const std::filesystem::path& path, std::string_view text, mode_t mode) {
  // Containers that share the folder may have processes of one number.
  std::uint64_t number = 0;
  fill_random(std::as_writable_bytes(std::span(&number, 1)));
  const std::string beside = fmt::format("{}.{:016x}", path.string(), number);
  const FileDescriptor file(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode));
  if (!file) return errno;
  if (write_all(file.get(), text) && std::rename(beside.c_str(), path.c_str()) == 0) return 0;
  const int reason = errno;
  unlink(beside.c_str());
  return reason;
}

}  // namespace ropewalk
