// A hash of a text, to compare the texts of several ranks or files. Not cryptographic.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace ropewalk {

/// FNV-1a, 64 bits (Fowler, Noll, Vo). The same in every process and on every machine.
constexpr std::uint64_t digest(std::string_view text) noexcept {
  std::uint64_t value = 0xcbf29ce484222325U;
  for (const char c : text) {
    value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  }
  return value;
}

/// 16 hexadecimal digits.
inline std::string digest_text(std::string_view text) {
  return fmt::format("{:016x}", digest(text));
}

}  // namespace ropewalk
