// Text to numbers with units, and back. Used by settings, the command line and reports.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ropewalk {

/// "8", "64K", "1.5M", "2GiB" -> bytes. K, M, G, T are powers of 1024, as in nccl-tests.
/// @throws Error kInvalidArgument for anything else, negative or beyond size_t
std::size_t parse_bytes(std::string_view text);

/// "250ms", "1.5s", "20us", "3min", "1h"; a bare number is seconds. "0" is zero.
/// @throws Error kInvalidArgument for anything else, negative or beyond 100 years
std::chrono::nanoseconds parse_duration(std::string_view text);

/// A decimal integer. @throws Error kInvalidArgument for anything else
std::int64_t parse_integer(std::string_view text);

/// 65536 -> "64 KiB"; exact multiples only get the larger unit, others one decimal.
std::string format_bytes(std::size_t bytes);

/// 0.0000025 s -> "2.5 us".
std::string format_duration(std::chrono::nanoseconds duration);

}  // namespace ropewalk
