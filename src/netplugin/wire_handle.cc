#include "netplugin/wire_handle.h"

#include <cstring>

#include "core/error.h"
#include "transport/auto/auto.h"
#include "transport/checksum.h"
#include "transport/rails/rails.h"

namespace ropewalk::netplugin {
namespace {

constexpr std::size_t kCheckBytes = sizeof(std::uint32_t);
constexpr std::size_t kAttemptOffset = abi::kHandleBytes - sizeof(std::uint64_t);

std::uint32_t check_of(const std::byte* bytes, HandleSize size) {
  // The first word makes bytes of any other program fail, all zeros too.
  constexpr std::uint32_t kMark = 0x52574e31;
  const std::uint64_t sum = transport::checksum(bytes + kCheckBytes, room_in(size));
  return static_cast<std::uint32_t>(sum) ^ kMark;
}

}  // namespace

std::size_t room_in(HandleSize size) noexcept {
  return (size == HandleSize::kShort ? abi::kShortHandleBytes : kAttemptOffset) - kCheckBytes;
}

void write_handle(const transport::Handle& handle, HandleSize size, void* target) {
  const transport::Handle fitting =
      transport::shortened(transport::rails::shortened(handle, room_in(size)), room_in(size));
  std::byte bytes[abi::kHandleBytes] = {};
  std::memcpy(bytes + kCheckBytes, fitting.data(), room_in(size));
  const std::uint32_t check = check_of(bytes, size);
  std::memcpy(bytes, &check, sizeof check);
  std::memcpy(target, bytes, static_cast<std::size_t>(size));
}

transport::Handle read_handle(HandleSize size, const void* source) {
  std::byte bytes[abi::kHandleBytes] = {};
  std::memcpy(bytes, source, static_cast<std::size_t>(size));
  std::uint32_t check = 0;
  std::memcpy(&check, bytes, sizeof check);
  if (check != check_of(bytes, size)) {
    throw Error(Errc::kInvalidArgument, "{}",
                "the connection handle was changed in transit, or comes from another plugin or "
                "another version of this one");
  }
  transport::Handle handle{};
  std::memcpy(handle.data(), bytes + kCheckBytes, room_in(size));
  return handle;
}

void* read_attempt(const void* handle) noexcept {
  void* attempt = nullptr;
  std::memcpy(&attempt, static_cast<const std::byte*>(handle) + kAttemptOffset, sizeof attempt);
  return attempt;
}

void write_attempt(void* handle, void* attempt) noexcept {
  std::memcpy(static_cast<std::byte*>(handle) + kAttemptOffset, &attempt, sizeof attempt);
}

}  // namespace ropewalk::netplugin
