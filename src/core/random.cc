#include "core/random.h"

#include <sys/random.h>

#include <cerrno>

#include "core/error.h"

namespace ropewalk {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t got = getrandom(bytes.data(), bytes.size(), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      throw system_error(errno, "getrandom");
    }
    bytes = bytes.subspan(static_cast<std::size_t>(got));
  }
}

}  // namespace ropewalk
