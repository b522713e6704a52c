#include "transport/messaging/verification.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include "transport/checksum.h"

namespace ropewalk::transport::messaging {

Verify verify_of(const std::string& setting) {
  if (setting == "off") return Verify::kOff;
  return setting == "all" ? Verify::kAll : Verify::kConnect;
}

void fill_pattern(std::span<std::byte> memory, std::uint64_t seed) {
  std::uint64_t state = seed | 1;
  for (std::byte& each : memory) {
    state = state * 6364136223846793005U + 1442695040888963407U;
    each = static_cast<std::byte>(state >> 56);
  }
}

std::uint64_t wire_checksum(const void* data, std::size_t bytes) {
  const std::uint64_t sum = checksum(data, bytes);
  return sum == 0 ? 1 : sum;
}

std::string too_long(std::uint64_t bytes, std::uint32_t tag, std::uint64_t room) {
  return fmt::format("a message of {} bytes (tag {}) came for a receive of {} bytes", bytes, tag,
                     room);
}

std::string locked_memory_limit() {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) return "unknown";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return fmt::format("{} KiB", limit.rlim_cur >> 10);
}

}  // namespace ropewalk::transport::messaging
