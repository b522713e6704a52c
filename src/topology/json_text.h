// JSON as text: where in it something is wrong.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace ropewalk::topology {

/// "line 3, column 5" of the byte at `offset`; of the end for larger ones.
std::string position_in(std::string_view text, std::size_t offset);

/// What the JSON library says of a text that it refuses, without its own prefix, and with the line
/// of a number too large for it, which it leaves out.
std::string parse_error_words(std::string_view text, std::string_view library_words);

}  // namespace ropewalk::topology
