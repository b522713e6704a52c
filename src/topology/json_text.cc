#include "topology/json_text.h"

#include <fmt/format.h>

#include <algorithm>

namespace ropewalk::topology {

std::string position_in(std::string_view text, std::size_t offset) {
  const std::string_view before = text.substr(0, std::min(offset, text.size()));
  const auto line = std::count(before.begin(), before.end(), '\n') + 1;
  const std::size_t newline = before.rfind('\n');
  const std::size_t column =
      newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  return fmt::format("line {}, column {}", line, column);
}

std::string parse_error_words(std::string_view text, std::string_view library_words) {
  // "[json.exception.parse_error.101] parse error at line 3, column 5: ..."
  std::string_view words = library_words;
  if (const std::size_t end = words.find("] "); end != std::string_view::npos) {
    words.remove_prefix(end + 2);
  }
  // "[json.exception.out_of_range.406] number overflow parsing '1e999'"
  if (const std::size_t quote = words.find("number overflow parsing '");
      quote != std::string_view::npos) {
    std::string_view number = words.substr(words.find('\'') + 1);
    number = number.substr(0, number.rfind('\''));
    return fmt::format("{}: the number {} is too large", position_in(text, text.find(number)),
                       number.substr(0, 64));
  }
  return std::string(words);
}

}  // namespace ropewalk::topology
