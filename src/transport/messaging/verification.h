// What the providers over message-passing libraries have in common in verifying their connections.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace ropewalk::transport::messaging {

/// As the setting VERIFY says.
enum class Verify : std::uint8_t { kOff, kConnect, kAll };
Verify verify_of(const std::string& setting);

/// The pattern that is sent when a connection is made.
void fill_pattern(std::span<std::byte> memory, std::uint64_t seed);
/// The tag of its messages.
inline constexpr std::uint32_t kPatternTag = 0xffffffff;

/// 0 on the wire means that the sender made no checksum.
std::uint64_t wire_checksum(const void* data, std::size_t bytes);

/// The error text for a message that is longer than its receive.
std::string too_long(std::uint64_t bytes, std::uint32_t tag, std::uint64_t room);

/// The limit of locked memory (ulimit -l), in words.
std::string locked_memory_limit();

}  // namespace ropewalk::transport::messaging
