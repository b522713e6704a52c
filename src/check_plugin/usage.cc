#include "check_plugin/usage.h"

#include <malloc.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace ropewalk::check_plugin {
namespace {

using Entry = std::filesystem::directory_entry;

// But those of which `left_out` is true.
template <typename LeftOut>
std::size_t entries(const char* folder, LeftOut left_out) {
  std::error_code error;
  std::size_t count = 0;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    if (!left_out(*it)) ++count;
  }
  return count;
}

// CUDA's driver library keeps a thread and its devices open until the process ends, whoever used
// it first.
bool is_thread_of_driver(const Entry& task) {
  std::ifstream stream(task.path() / "comm");
  std::string name;
  return std::getline(stream, name) && name.starts_with("cuda");
}
bool is_of_driver(const Entry& descriptor) {
  std::error_code error;
  const std::filesystem::path target = std::filesystem::read_symlink(descriptor.path(), error);
  return !error && target.native().starts_with("/dev/nvidia");
}

std::size_t lines(const char* file) {
  std::ifstream stream(file);
  std::size_t count = 0;
  for (std::string line; std::getline(stream, line);) ++count;
  return count;
}

std::size_t resident() {
  std::ifstream status("/proc/self/status");
  std::size_t total = 0;
  for (std::string line; std::getline(status, line);) {
    if (!line.starts_with("RssAnon:") && !line.starts_with("RssShmem:")) continue;
    std::istringstream words(line.substr(line.find(':') + 1));
    std::size_t kib = 0;
    words >> kib;
    total += kib * 1024;
  }
  return total;
}

}  // namespace

Usage usage_now() {
  Usage usage;
  usage.descriptors = entries("/proc/self/fd", is_of_driver);
  usage.threads = entries("/proc/self/task", is_thread_of_driver);
  usage.mappings = lines("/proc/self/maps");
  usage.heap_bytes = mallinfo2().uordblks;
  usage.resident_bytes = resident();
  usage.segments = entries("/dev/shm", [](const Entry&) { return false; });
  return usage;
}

}  // namespace ropewalk::check_plugin
