#include "bootstrap/packed_records.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>
#include <tuple>

#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

// The first record is whole. Of each further one: how many runs of it differ from the record
// before, and of each run how many equal bytes precede it, its length, and its bytes. Numbers have
// seven bits to a byte, the lowest first, and the eighth bit where more follow.

// A shorter run of equal bytes between two others costs more than it saves.
constexpr std::size_t kLeastEqual = 4;

void put_number(std::vector<std::byte>& out, std::size_t value) {
  for (; value >= 0x80; value >>= 7U) out.push_back(static_cast<std::byte>(value | 0x80U));
  out.push_back(static_cast<std::byte>(value));
}

std::optional<std::size_t> take_number(std::span<const std::byte>& in) {
  std::size_t value = 0;
  for (unsigned shift = 0; shift < std::numeric_limits<std::size_t>::digits; shift += 7) {
    if (in.empty()) return std::nullopt;
    const auto byte = std::to_integer<std::size_t>(in.front());
    in = in.subspan(1);
    value |= (byte & 0x7fU) << shift;
    if ((byte & 0x80U) == 0) return value;
  }
  return std::nullopt;
}

struct Run {
  std::size_t begin;
  std::size_t end;
};

// Where a record differs from the one before.
void find_runs(std::span<const std::byte> before, std::span<const std::byte> record,
               std::vector<Run>& runs) {
  runs.clear();
  for (auto one = before.begin(), other = record.begin();;) {
    std::tie(one, other) = std::mismatch(one, before.end(), other);
    if (one == before.end()) return;
    const auto begin = static_cast<std::size_t>(one - before.begin());
    std::tie(one, other) = std::mismatch(one, before.end(), other, std::not_equal_to<>());
    const auto end = static_cast<std::size_t>(one - before.begin());
    if (!runs.empty() && begin - runs.back().end < kLeastEqual) {
      runs.back().end = end;
    } else {
      runs.push_back({begin, end});
    }
  }
}

}  // namespace

std::vector<std::byte> pack_records(std::span<const std::byte> records, std::size_t bytes_each) {
  std::vector<std::byte> out;
  put_number(out, bytes_each);
  if (records.empty()) return out;
  RW_ASSERT(bytes_each > 0 && records.size() % bytes_each == 0);
  out.insert(out.end(), records.begin(), records.begin() + static_cast<std::ptrdiff_t>(bytes_each));
  std::vector<Run> runs;
  for (std::size_t at = bytes_each; at < records.size(); at += bytes_each) {
    const std::span<const std::byte> record = records.subspan(at, bytes_each);
    find_runs(records.subspan(at - bytes_each, bytes_each), record, runs);
    put_number(out, runs.size());
    std::size_t told = 0;
    for (const Run& run : runs) {
      put_number(out, run.begin - told);
      put_number(out, run.end - run.begin);
      out.insert(out.end(), record.data() + run.begin, record.data() + run.end);
      told = run.end;
    }
  }
  return out;
}

bool unpack_records(std::span<const std::byte> packed, std::span<std::byte> records,
                    std::size_t bytes_each) {
  if (take_number(packed) != bytes_each) return false;
  if (records.empty()) return packed.empty();
  if (bytes_each == 0 || packed.size() < bytes_each) return false;
  std::ranges::copy(packed.first(bytes_each), records.begin());
  packed = packed.subspan(bytes_each);
  for (std::size_t at = bytes_each; at < records.size(); at += bytes_each) {
    std::byte* const record = records.data() + at;
    std::memcpy(record, record - bytes_each, bytes_each);
    std::optional<std::size_t> runs = take_number(packed);
    if (!runs.has_value()) return false;
    std::size_t told = 0;
    for (; *runs > 0; --*runs) {
      const std::optional<std::size_t> equal = take_number(packed);
      const std::optional<std::size_t> length = take_number(packed);
      if (!equal.has_value() || !length.has_value() || *equal > bytes_each - told ||
          *length > bytes_each - told - *equal || *length > packed.size()) {
        return false;
      }
      told += *equal;
      std::ranges::copy(packed.first(*length), record + told);
      packed = packed.subspan(*length);
      told += *length;
    }
  }
  return packed.empty();
}

}  // namespace ropewalk::bootstrap
