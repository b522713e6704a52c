#include "transport/messaging/psm2/shared_files.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string_view>

#include "transport/messaging/abandoned_files.h"

namespace ropewalk::transport::psm2 {
namespace {

std::string prefix() { return fmt::format("psm2_shm.{}", getuid()); }

}  // namespace

std::string shared_file(std::uint64_t endpoint_id) {
  return messaging::shared_memory_file(fmt::format("{}{:016x}0", prefix(), endpoint_id));
}

int remove_abandoned_files() {
  return messaging::remove_abandoned_files(
      [own = prefix()](std::string_view name) { return name.starts_with(own); });
}

}  // namespace ropewalk::transport::psm2
