#include "check_plugin/usage.h"

#include <malloc.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

namespace ropewalk::check_plugin {
namespace {

std::size_t entries(const char* folder) {
  std::error_code error;
  std::filesystem::directory_iterator first(folder, error);
  if (error) return 0;
  return static_cast<std::size_t>(std::distance(first, {}));
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
  usage.descriptors = entries("/proc/self/fd");
  usage.threads = entries("/proc/self/task");
  usage.mappings = lines("/proc/self/maps");
  usage.heap_bytes = mallinfo2().uordblks;
  // What malloc keeps of memory that was freed is left by nobody. It depends on how many
  // connections were open at once, and so on the load.
  malloc_trim(0);
  usage.resident_bytes = resident();
  usage.segments = entries("/dev/shm");
  return usage;
}

}  // namespace ropewalk::check_plugin
