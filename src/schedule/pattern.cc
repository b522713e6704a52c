#include "schedule/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <optional>
#include <type_traits>

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

// Elements that are computed at once: their values stay in the cache.
constexpr std::size_t kAtOnce = 256;

template <typename T>
void store_as(const double* values, std::size_t count, std::byte* elements) {
  for (std::size_t i = 0; i < count; ++i) {
    // Through a signed integer: a negative value has no unsigned one.
    using Between = std::conditional_t<std::is_floating_point_v<T>, T, std::int64_t>;
    const T v = static_cast<T>(static_cast<Between>(values[i]));
    std::memcpy(elements + i * sizeof v, &v, sizeof v);
  }
}

template <typename Bits>
void store_small(DataType type, const double* values, std::size_t count, std::byte* elements) {
  for (std::size_t i = 0; i < count; ++i) {
    const auto v = static_cast<Bits>(encode_small_float(type, static_cast<float>(values[i])));
    std::memcpy(elements + i * sizeof v, &v, sizeof v);
  }
}

void store(DataType type, const double* values, std::size_t count, std::byte* elements) {
  switch (type) {
    case DataType::kInt8:
    case DataType::kUint8: return store_as<std::uint8_t>(values, count, elements);
    case DataType::kInt32:
    case DataType::kUint32: return store_as<std::uint32_t>(values, count, elements);
    case DataType::kInt64:
    case DataType::kUint64: return store_as<std::uint64_t>(values, count, elements);
    case DataType::kFloat32: return store_as<float>(values, count, elements);
    case DataType::kFloat64: return store_as<double>(values, count, elements);
    case DataType::kFloat16:
    case DataType::kBfloat16: return store_small<std::uint16_t>(type, values, count, elements);
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2: return store_small<std::uint8_t>(type, values, count, elements);
  }
}

template <typename T>
void load_as(const std::byte* elements, std::size_t count, double* values) {
  for (std::size_t i = 0; i < count; ++i) {
    T v;
    std::memcpy(&v, elements + i * sizeof v, sizeof v);
    values[i] = static_cast<double>(v);
  }
}

template <typename Bits>
void load_small(DataType type, const std::byte* elements, std::size_t count, double* values) {
  for (std::size_t i = 0; i < count; ++i) {
    Bits bits = 0;
    std::memcpy(&bits, elements + i * sizeof bits, sizeof bits);
    values[i] = decode_small_float(type, bits);
  }
}

void load(DataType type, const std::byte* elements, std::size_t count, double* values) {
  switch (type) {
    case DataType::kInt8: return load_as<std::int8_t>(elements, count, values);
    case DataType::kUint8: return load_as<std::uint8_t>(elements, count, values);
    case DataType::kInt32: return load_as<std::int32_t>(elements, count, values);
    case DataType::kUint32: return load_as<std::uint32_t>(elements, count, values);
    case DataType::kInt64: return load_as<std::int64_t>(elements, count, values);
    case DataType::kUint64: return load_as<std::uint64_t>(elements, count, values);
    case DataType::kFloat32: return load_as<float>(elements, count, values);
    case DataType::kFloat64: return load_as<double>(elements, count, values);
    case DataType::kFloat16:
    case DataType::kBfloat16: return load_small<std::uint16_t>(type, elements, count, values);
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2: return load_small<std::uint8_t>(type, elements, count, values);
  }
}

}  // namespace

TestPattern::TestPattern(Collective collective, DataType type, RedOp op, int num_ranks, int root,
                         std::size_t count)
    : collective_(collective),
      type_(type),
      op_(op),
      num_ranks_(num_ranks),
      root_(root),
      count_(count) {
  const double limit = exact_limit(type);
  const double share = std::floor(limit / num_ranks / 2);  // a scalar may double it
  if (!reduces(collective) || op == RedOp::kMax || op == RedOp::kMin) {
    below_ = 8;
  } else if (op == RedOp::kProd) {
    // A few factors of two, on ranks that change with the index.
    low_ = 1;
    high_ = 2;
    most_high_ = static_cast<std::size_t>(std::log2(limit + 1));
  } else if (share >= 1) {
    below_ = static_cast<std::uint64_t>(std::min(share, 64.0)) + 1;
  } else {
    high_ = 1;
    most_high_ = static_cast<std::size_t>(limit / 2);
  }
}

double TestPattern::scalar_value(int rank) const {
  if (op_ != RedOp::kPreMulSum) return 1;
  return rank % 2 == 0 ? 1 : 2;
}

std::uint64_t TestPattern::scalar(int rank) const {
  std::array<std::byte, sizeof(std::uint64_t)> bytes{};
  const double value = scalar_value(rank);
  store(type_, &value, 1, bytes.data());
  std::uint64_t bits = 0;
  std::memcpy(&bits, bytes.data(), sizeof bits);
  return bits;
}

void TestPattern::input_values(int rank, std::size_t begin, std::size_t count,
                               double* values) const {
  const auto r = static_cast<std::uint64_t>(rank);
  if (below_ != 0) {
    for (std::size_t i = 0; i < count; ++i) {
      // The upper half, scaled: a multiplication takes a tenth of the time of a division.
      const std::uint64_t drawn = mix((begin + i) * 1024 + r) >> 32U;
      values[i] = static_cast<double>((drawn * below_) >> 32U);
    }
    return;
  }
  const auto ranks = static_cast<std::size_t>(num_ranks_);
  std::size_t turn = (begin + static_cast<std::size_t>(rank)) % ranks;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] = turn < most_high_ ? high_ : low_;
    if (++turn == ranks) turn = 0;
  }
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

void TestPattern::reduced_values(std::size_t begin, std::size_t count, double* values) const {
  std::array<double, kAtOnce> next;
  for (int r = 0; r < num_ranks_; ++r) {
    double* const to = r == 0 ? values : next.data();
    input_values(r, begin, count, to);
    if (const double scalar = scalar_value(r); scalar != 1) {
      for (std::size_t i = 0; i < count; ++i) to[i] *= scalar;
    }
    if (r == 0) continue;
    switch (op_) {
      case RedOp::kSum:
      case RedOp::kAvg:
      case RedOp::kPreMulSum:
        for (std::size_t i = 0; i < count; ++i) values[i] += next[i];
        break;
      case RedOp::kProd:
        for (std::size_t i = 0; i < count; ++i) values[i] *= next[i];
        break;
      case RedOp::kMax:
        for (std::size_t i = 0; i < count; ++i) values[i] = std::max(values[i], next[i]);
        break;
      case RedOp::kMin:
        for (std::size_t i = 0; i < count; ++i) values[i] = std::min(values[i], next[i]);
        break;
    }
  }
  if (op_ != RedOp::kAvg) return;
  for (std::size_t i = 0; i < count; ++i) {
    values[i] /= num_ranks_;
    if (!is_float(type_)) values[i] = std::trunc(values[i]);
  }
}

void TestPattern::fill_input(int rank, void* input) const {
  const std::size_t elements =
      count_ * static_cast<std::size_t>(input_units(collective_, num_ranks_, root_, rank));
  auto* bytes = static_cast<std::byte*>(input);
  std::array<double, kAtOnce> values;
  for (std::size_t begin = 0; begin < elements; begin += kAtOnce) {
    const std::size_t some = std::min(kAtOnce, elements - begin);
    input_values(rank, begin, some, values.data());
    store(type_, values.data(), some, bytes + begin * size_of(type_));
  }
}

std::uint64_t TestPattern::count_wrong(int rank, const void* output) const {
  const int units = output_units(collective_, num_ranks_, root_, rank);
  const bool exact = op_ != RedOp::kAvg || !reduces(collective_) || !is_float(type_);
  const double tolerance = exact ? 0 : epsilon(type_) * num_ranks_;
  const auto* bytes = static_cast<const std::byte*>(output);
  std::uint64_t wrong = 0;
  std::array<double, kAtOnce> expected;
  std::array<double, kAtOnce> got;
  for (int unit = 0; unit < units; ++unit) {
    const std::optional<Origin> from = reduces(collective_) ? std::nullopt : origin(rank, unit);
    const std::size_t reduced_from =
        collective_ == Collective::kReduceScatter ? static_cast<std::size_t>(rank) * count_ : 0;
    for (std::size_t begin = 0; begin < count_; begin += kAtOnce) {
      const std::size_t some = std::min(kAtOnce, count_ - begin);
      if (from.has_value()) {
        input_values(from->rank, static_cast<std::size_t>(from->unit) * count_ + begin, some,
                     expected.data());
      } else {
        reduced_values(reduced_from + begin, some, expected.data());
      }
      load(type_, bytes, some, got.data());
      bytes += some * size_of(type_);
      for (std::size_t i = 0; i < some; ++i) {
        // Written so that a NaN is wrong.
        if (!(std::fabs(got[i] - expected[i]) <=
              tolerance * std::max(1.0, std::fabs(expected[i])))) {
          ++wrong;
        }
      }
    }
  }
  return wrong;
}

}  // namespace ropewalk::schedule
