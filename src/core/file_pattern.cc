#include "core/file_pattern.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <climits>

#include "core/error.h"

namespace ropewalk {

std::string short_host_name() {
  std::array<char, HOST_NAME_MAX + 1> buffer{};
  gethostname(buffer.data(), buffer.size() - 1);
  const std::string host = buffer.data();
  return host.substr(0, host.find('.'));
}

std::string expand_file_pattern(std::string_view setting, std::string_view pattern,
                                std::span<const std::pair<char, std::string>> more) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    const char letter = pattern[++i];
    const auto known = std::ranges::find(more, letter, &std::pair<char, std::string>::first);
    if (letter == 'h') {
      path += short_host_name();
    } else if (letter == 'p') {
      path += std::to_string(getpid());
    } else if (letter == '%') {
      path += '%';
    } else if (known != more.end()) {
      path += known->second;
    } else {
      std::string letters = "%h, %p";
      for (const auto& each : more) letters += std::string(", %") + each.first;
      throw Error(Errc::kInvalidArgument, "ROPEWALK_{}: \"%{}\" is not one of {}, %%", setting,
                  letter, letters);
    }
  }
  return path;
}

}  // namespace ropewalk
