#include "comm/collective_call.h"

#include <limits>
#include <string_view>

#include "core/error.h"
#include "schedule/layout.h"

namespace ropewalk::comm {
namespace {

template <typename Call>
void require_count(const Call& call, int units) {
  const std::size_t limit = static_cast<std::size_t>(std::numeric_limits<std::ptrdiff_t>::max());
  if (call.count > limit / size_of(call.type) / static_cast<std::size_t>(units)) {
    throw Error(Errc::kInvalidArgument, "count: {} for {} rank(s) exceed the address space",
                describe_elements(call.count, call.type, call.carried), units);
  }
}

// How far a program's memory reaches: 2^47 or 2^48 bytes, or 2^57 where pages have five levels and
// the program asked for addresses beyond the first 2^47.
constexpr std::uintptr_t last_address(std::uintptr_t of) {
  return std::uintptr_t{1} << (of >> 48 == 0 ? 48 : 57);
}

bool fits(std::uintptr_t address, std::size_t bytes) {
  const std::uintptr_t last = last_address(address);
  return bytes <= last && address <= last - bytes;
}

void require_buffer(const void* buffer, std::string_view name, std::size_t bytes,
                    std::size_t element_bytes) {
  if (bytes == 0) return;
  if (buffer == nullptr) {
    throw Error(Errc::kInvalidArgument, "{}: NULL, and {} bytes are needed", name, bytes);
  }
  const auto address = reinterpret_cast<std::uintptr_t>(buffer);
  if (address % element_bytes != 0) {
    throw Error(Errc::kInvalidArgument, "{}: {} is not aligned to the element's {} bytes", name,
                fmt::ptr(buffer), element_bytes);
  }
  if (!fits(address, bytes)) {
    throw Error(Errc::kInvalidArgument, "{}: {} bytes at {} leave the address space", name, bytes,
                fmt::ptr(buffer));
  }
}

// What require_buffer() refuses, without the words: most calls are right.
bool usable(const void* buffer, std::size_t bytes, std::size_t element_bytes) {
  const auto address = reinterpret_cast<std::uintptr_t>(buffer);
  const bool there =
      buffer != nullptr && (address & (element_bytes - 1)) == 0 && fits(address, bytes);
  return there || bytes == 0;
}

// From the tag of a carrier's elements. No division, since short calls would pay for it without
// using it.
void set_carried(executor::CallTag& tag, CarriedType carried) noexcept {
  if (carried == CarriedType::kNothing) {
    tag.collective = executor::kBarrier;
    return;
  }
  tag.count /= carrier_of(carried).per_element;
  constexpr unsigned kOperator = 0xffU << executor::kTagTypeBits;
  tag.type_and_op =
      static_cast<std::uint8_t>((tag.type_and_op & kOperator) | static_cast<unsigned>(carried));
}

bool overlap(const void* a, std::size_t a_bytes, const void* b, std::size_t b_bytes) {
  const auto a_begin = reinterpret_cast<std::uintptr_t>(a);
  const auto b_begin = reinterpret_cast<std::uintptr_t>(b);
  return a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

}  // namespace

Extent extent_of(const CollectiveCall& call, int rank, int num_ranks) {
  if (has_root(call.collective) && (call.root < 0 || call.root >= num_ranks)) {
    throw Error(Errc::kInvalidArgument, "root: {} is outside 0 to {}", call.root, num_ranks - 1);
  }
  const std::size_t element = size_of(call.type);
  const int inputs = schedule::input_units(call.collective, num_ranks, call.root, rank);
  const int outputs = schedule::output_units(call.collective, num_ranks, call.root, rank);
  require_count(call, num_ranks);
  const std::size_t unit_bytes = call.count * element;
  return {unit_bytes * static_cast<std::size_t>(inputs),
          unit_bytes * static_cast<std::size_t>(outputs), element};
}

Validated validate_buffers(const CollectiveCall& call, const Extent& extent, int rank) {
  const auto [input_bytes, output_bytes, element] = extent;
  if (!usable(call.input, input_bytes, element) || !usable(call.output, output_bytes, element)) {
    require_buffer(call.input, "sendbuf", input_bytes, element);
    require_buffer(call.output, "recvbuf", output_bytes, element);
  }
  if (input_bytes == 0 || output_bytes == 0) return {};
  if (!overlap(call.input, input_bytes, call.output, output_bytes)) return {};

  const std::optional<int> offset = schedule::in_place_input_offset(call.collective, rank);
  if (!offset.has_value()) {
    throw Error(Errc::kInvalidArgument, "sendbuf and recvbuf overlap, and {} has no in-place form",
                name(call.collective));
  }
  // The offset counts in units from the start of the larger buffer to the smaller one.
  const auto shift = static_cast<std::intptr_t>(call.count * element) * *offset;
  const auto expected = reinterpret_cast<std::intptr_t>(call.output) + shift;
  if (reinterpret_cast<std::intptr_t>(call.input) != expected) {
    throw Error(Errc::kInvalidArgument,
                "sendbuf and recvbuf overlap, but not as {} in place on rank {} needs it",
                name(call.collective), rank);
  }
  return {true};
}

Validated validate(const CollectiveCall& call, int rank, int num_ranks) {
  return validate_buffers(call, extent_of(call, rank, num_ranks), rank);
}

void validate(const PointToPointCall& call, int num_ranks) {
  if (call.peer < 0 || call.peer >= num_ranks) {
    throw Error(Errc::kInvalidArgument, "peer: {} is outside 0 to {}", call.peer, num_ranks - 1);
  }
  const std::size_t element = size_of(call.type);
  require_count(call, 1);
  if (call.sends) {
    require_buffer(call.input, "sendbuf", call.count * element, element);
  } else {
    require_buffer(call.output, "recvbuf", call.count * element, element);
  }
}

CollectiveCall barrier_call(float& nothing) noexcept {
  CollectiveCall call;
  call.input = &nothing;
  call.output = &nothing;
  call.count = 1;
  call.carried = CarriedType::kNothing;
  return call;
}

std::string describe_elements(std::size_t count, DataType type, CarriedType carried) {
  if (carried == CarriedType::kNone) return fmt::format("{} {}", count, name(type));
  return fmt::format("{} {}", count / carrier_of(carried).per_element, name(carried));
}

std::string_view operation_name(const CollectiveCall& call) noexcept {
  return call.carried == CarriedType::kNothing ? std::string_view("barrier")
                                               : name(call.collective);
}

std::size_t message_bytes(const CollectiveCall& call) noexcept {
  return call.carried == CarriedType::kNothing ? 0 : call.count * size_of(call.type);
}

executor::CallTag tag_of(const CollectiveCall& call, std::uint32_t number) noexcept {
  executor::CallTag tag;
  tag.count = call.count;
  tag.call = number;
  tag.root = has_root(call.collective) ? static_cast<std::uint16_t>(call.root) : std::uint16_t{0};
  tag.collective = static_cast<std::uint8_t>(call.collective);
  const unsigned op = reduces(call.collective) ? static_cast<unsigned>(call.op) : 0U;
  tag.type_and_op =
      static_cast<std::uint8_t>(static_cast<unsigned>(call.type) | op << executor::kTagTypeBits);
  if (call.carried != CarriedType::kNone) set_carried(tag, call.carried);
  return tag;
}

executor::CallTag tag_of(const PointToPointCall& call) noexcept {
  executor::CallTag tag;
  tag.count = call.count;
  tag.collective = executor::kPointToPoint;
  tag.type_and_op = static_cast<std::uint8_t>(call.type);
  if (call.carried != CarriedType::kNone) set_carried(tag, call.carried);
  return tag;
}

}  // namespace ropewalk::comm
