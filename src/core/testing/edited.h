// Texts for fuzzers of readers: their own bytes, or a real file with edits, which gets further.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ropewalk::testing {

/// Every three bytes of `data` overwrite a byte of `text`, delete one, or double one.
inline std::string edited(std::string text, const std::uint8_t* data, std::size_t size) {
  for (std::size_t i = 0; i + 2 < size && !text.empty(); i += 3) {
    const std::size_t at = (data[i] * 256U + data[i + 1]) % text.size();
    if (data[i + 2] == 0) {
      text.erase(at, 1);
    } else if (data[i + 2] == 1) {
      text.insert(at, 1, text[at]);
    } else {
      text[at] = static_cast<char>(data[i + 2]);
    }
  }
  return text;
}

/// `real` with edits where the first byte is odd, else the bytes as they are.
inline std::string edited_or_raw(const std::string& real, const std::uint8_t* data,
                                 std::size_t size) {
  const bool edits = size > 0 && data[0] % 2 == 1;
  return edits ? edited(real, data + 1, size - 1)
               : std::string(reinterpret_cast<const char*>(data), size);
}

}  // namespace ropewalk::testing
