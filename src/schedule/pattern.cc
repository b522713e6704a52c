#include "schedule/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "core/small_float.h"
#include "schedule/layout.h"

namespace ropewalk::schedule {
namespace {

// Largest n such that all integers from 0 to n are exact.
double exact_limit(DataType type) {
  switch (type) {
    case DataType::kInt8: return 127;
    case DataType::kUint8: return 255;
    case DataType::kFloat16: return 2048;
    case DataType::kBfloat16: return 256;
    case DataType::kFloat8e4m3: return 16;
    case DataType::kFloat8e5m2: return 8;
    default: return 1 << 24;
  }
}

// Relative size of a rounding error.
double epsilon(DataType type) {
  switch (type) {
    case DataType::kFloat16: return 0x1p-10;
    case DataType::kBfloat16: return 0x1p-7;
    case DataType::kFloat8e4m3: return 0x1p-3;
    case DataType::kFloat8e5m2: return 0x1p-2;
    case DataType::kFloat32: return 0x1p-23;
    case DataType::kFloat64: return 0x1p-52;
    default: return 0;
  }
}

std::uint64_t mix(std::uint64_t x) {
  // The finaliser of splitmix64: every output bit depends on every input bit.
  x += 0x9e3779b97f4a7c15U;
  x = (x ^ (x >> 30U)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27U)) * 0x94d049bb133111ebU;
  return x ^ (x >> 31U);
}

void store(DataType type, double value, void* element) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: {
      const auto v = static_cast<std::uint8_t>(static_cast<std::int64_t>(value));
      std::memcpy(element, &v, sizeof v);
      break;
    }
    case DataType::kInt32:
    case DataType::kUint32: {
      const auto v = static_cast<std::uint32_t>(static_cast<std::int64_t>(value));
      std::memcpy(element, &v, sizeof v);
      break;
    }
    case DataType::kInt64:
    case DataType::kUint64: {
      const auto v = static_cast<std::int64_t>(value);
      std::memcpy(element, &v, sizeof v);
      break;
    }
    case DataType::kFloat32: {
      const auto v = static_cast<float>(value);
      std::memcpy(element, &v, sizeof v);
      break;
    }
    case DataType::kFloat64: std::memcpy(element, &value, sizeof value); break;
    case DataType::kFloat16:
    case DataType::kBfloat16: {
      const std::uint16_t v = encode_small_float(type, static_cast<float>(value));
      std::memcpy(element, &v, sizeof v);
      break;
    }
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2: {
      const auto v = static_cast<std::uint8_t>(encode_small_float(type, static_cast<float>(value)));
      std::memcpy(element, &v, sizeof v);
      break;
    }
  }
}

template <typename T>
double load_as(const void* element) {
  T value;
  std::memcpy(&value, element, sizeof value);
  return static_cast<double>(value);
}

double load(DataType type, const void* element) {
  switch (type) {
    case DataType::kInt8: return load_as<std::int8_t>(element);
    case DataType::kUint8: return load_as<std::uint8_t>(element);
    case DataType::kInt32: return load_as<std::int32_t>(element);
    case DataType::kUint32: return load_as<std::uint32_t>(element);
    case DataType::kInt64: return load_as<std::int64_t>(element);
    case DataType::kUint64: return load_as<std::uint64_t>(element);
    case DataType::kFloat32: return load_as<float>(element);
    case DataType::kFloat64: return load_as<double>(element);
    case DataType::kFloat16:
    case DataType::kBfloat16: {
      std::uint16_t bits = 0;
      std::memcpy(&bits, element, sizeof bits);
      return decode_small_float(type, bits);
    }
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2: {
      std::uint8_t bits = 0;
      std::memcpy(&bits, element, sizeof bits);
      return decode_small_float(type, bits);
    }
  }
  return 0;
}

}  // namespace

TestPattern::TestPattern(Collective collective, DataType type, RedOp op, int num_ranks, int root,
                         std::size_t count)
    : collective_(collective),
      type_(type),
      op_(op),
      num_ranks_(num_ranks),
      root_(root),
      count_(count),
      most_twos_(static_cast<std::size_t>(std::log2(exact_limit(type) + 1))) {}

double TestPattern::scalar_value(int rank) const {
  if (op_ != RedOp::kPreMulSum) return 1;
  return rank % 2 == 0 ? 1 : 2;
}

std::uint64_t TestPattern::scalar(int rank) const {
  std::uint64_t bits = 0;
  store(type_, scalar_value(rank), &bits);
  return bits;
}

double TestPattern::input_value(int rank, std::size_t index) const {
  const auto r = static_cast<std::uint64_t>(rank);
  if (!reduces(collective_) || op_ == RedOp::kMax || op_ == RedOp::kMin) {
    return static_cast<double>(mix(index * 1024 + r) % 8);
  }
  const double limit = exact_limit(type_);
  const std::size_t turn =
      (index + static_cast<std::size_t>(rank)) % static_cast<std::size_t>(num_ranks_);
  if (op_ == RedOp::kProd) {
    // At most `twos` factors of two, on ranks that change with the index.
    return turn < most_twos_ ? 2 : 1;
  }
  const double share = std::floor(limit / num_ranks_ / 2);  // a scalar may double it
  if (share >= 1) {
    return static_cast<double>(mix(index * 1024 + r) %
                               static_cast<std::uint64_t>(std::min(share, 64.0) + 1));
  }
  return static_cast<double>(turn) < std::floor(limit / 2) ? 1 : 0;
}

std::optional<TestPattern::Origin> TestPattern::origin(int rank, int output_unit) const {
  const int units = num_units(collective_, num_ranks_);
  for (int unit = 0; unit < units; ++unit) {
    if (output_index(collective_, num_ranks_, root_, unit, rank) != output_unit) continue;
    const int source = *contributor(collective_, num_ranks_, root_, unit);
    return Origin{source, *input_index(collective_, num_ranks_, root_, unit, source)};
  }
  return std::nullopt;
}

double TestPattern::reduced_value(std::size_t index) const {
  double value = input_value(0, index) * scalar_value(0);
  for (int r = 1; r < num_ranks_; ++r) {
    const double next = input_value(r, index) * scalar_value(r);
    switch (op_) {
      case RedOp::kSum:
      case RedOp::kAvg:
      case RedOp::kPreMulSum: value += next; break;
      case RedOp::kProd: value *= next; break;
      case RedOp::kMax: value = std::max(value, next); break;
      case RedOp::kMin: value = std::min(value, next); break;
    }
  }
  if (op_ == RedOp::kAvg) {
    value /= num_ranks_;
    if (!is_float(type_)) value = std::trunc(value);
  }
  return value;
}

void TestPattern::fill_input(int rank, void* input) const {
  const std::size_t elements =
      count_ * static_cast<std::size_t>(input_units(collective_, num_ranks_, root_, rank));
  auto* bytes = static_cast<std::byte*>(input);
  for (std::size_t i = 0; i < elements; ++i) {
    store(type_, input_value(rank, i), bytes + i * size_of(type_));
  }
}

std::uint64_t TestPattern::count_wrong(int rank, const void* output) const {
  const int units = output_units(collective_, num_ranks_, root_, rank);
  const bool exact = op_ != RedOp::kAvg || !reduces(collective_) || !is_float(type_);
  const double tolerance = exact ? 0 : epsilon(type_) * num_ranks_;
  const auto* bytes = static_cast<const std::byte*>(output);
  std::uint64_t wrong = 0;
  for (int unit = 0; unit < units; ++unit) {
    const std::optional<Origin> from = reduces(collective_) ? std::nullopt : origin(rank, unit);
    const std::size_t reduced_from =
        collective_ == Collective::kReduceScatter ? static_cast<std::size_t>(rank) * count_ : 0;
    for (std::size_t i = 0; i < count_; ++i, bytes += size_of(type_)) {
      const double expected =
          from.has_value()
              ? input_value(from->rank, static_cast<std::size_t>(from->unit) * count_ + i)
              : reduced_value(reduced_from + i);
      const double got = load(type_, bytes);
      // Written so that a NaN is wrong.
      if (!(std::fabs(got - expected) <= tolerance * std::max(1.0, std::fabs(expected)))) ++wrong;
    }
  }
  return wrong;
}

}  // namespace ropewalk::schedule
