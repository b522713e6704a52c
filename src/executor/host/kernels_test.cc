// The kernels against a scalar reference that shares nothing with them: numbers are decoded by
// ldexp, rounded by nearbyint, integers folded in 128 bits.
#include "executor/host/kernels.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "core/testing/share.h"
#include "executor/host/kernels_table.h"

namespace ropewalk::executor {
namespace {

__extension__ using Wide = __int128;
__extension__ using UnsignedWide = unsigned __int128;

// ---- reference ----------------------------------------------------------------------------------

struct FloatFormat {
  int exponent_bits;
  int mantissa_bits;
  bool infinity;

  [[nodiscard]] int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  [[nodiscard]] std::uint32_t top_exponent() const { return (1u << exponent_bits) - 1; }
  [[nodiscard]] std::uint32_t sign_bit() const { return 1u << (exponent_bits + mantissa_bits); }
};

FloatFormat format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10, true};
    case DataType::kBfloat16: return {8, 7, true};
    case DataType::kFloat8e4m3: return {4, 3, false};
    case DataType::kFloat8e5m2: return {5, 2, true};
    default: ADD_FAILURE(); return {};
  }
}

double decode(FloatFormat f, std::uint32_t code) {
  const double sign = (code & f.sign_bit()) != 0 ? -1 : 1;
  const std::uint32_t magnitude = code & (f.sign_bit() - 1);
  const std::uint32_t exponent = magnitude >> f.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1u << f.mantissa_bits) - 1);
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (f.infinity && exponent == f.top_exponent()) {
    return mantissa != 0 ? nan : sign * std::numeric_limits<double>::infinity();
  }
  if (!f.infinity && magnitude == f.sign_bit() - 1) return nan;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - f.bias() - f.mantissa_bits);
  return sign * std::ldexp(mantissa + (1u << f.mantissa_bits),
                           static_cast<int>(exponent) - f.bias() - f.mantissa_bits);
}

/// A NaN is any code that decodes to one.
std::uint32_t encode(FloatFormat f, double value) {
  const std::uint32_t all_ones = f.sign_bit() - 1;
  if (std::isnan(value)) return all_ones;
  const std::uint32_t sign = std::signbit(value) ? f.sign_bit() : 0;
  const double magnitude = std::fabs(value);
  const std::uint32_t overflow = f.infinity ? f.top_exponent() << f.mantissa_bits : all_ones;
  if (std::isinf(magnitude)) return sign | overflow;
  if (magnitude == 0) return sign;
  const int exponent = std::max(std::ilogb(magnitude), 1 - f.bias());
  // Units of the last place, ties to even by the default rounding mode.
  const double units = std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent));
  const double rounded = std::ldexp(units, exponent - f.mantissa_bits);
  // From here on the value is exact: look its code up by its size.
  if (rounded == 0) return sign;
  const int e = std::max(std::ilogb(rounded), 1 - f.bias());
  const auto mantissa = static_cast<std::uint32_t>(std::ldexp(rounded, f.mantissa_bits - e));
  const auto biased = static_cast<std::uint32_t>(e + f.bias());
  const bool subnormal = mantissa < (1u << f.mantissa_bits);
  const std::uint32_t code = subnormal ? mantissa : ((biased - 1) << f.mantissa_bits) + mantissa;
  return sign | std::min(code, overflow);
}

std::uint64_t load_bits(const std::byte* address, std::size_t size) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, address, size);  // little-endian, as every machine this runs on
  return bits;
}

template <typename Float>
Float fold(RedOp op, Float a, Float b) {
  switch (op) {
    case RedOp::kProd: return a * b;
    case RedOp::kMax:
      if (std::isnan(a)) return b;
      return b > a ? b : a;
    case RedOp::kMin:
      if (std::isnan(a)) return b;
      return b < a ? b : a;
    default: return a + b;
  }
}

/// Products of 64-bit numbers may exceed 127 bits, so they are taken of unsigned ones.
Wide product(Wide a, Wide b) {
  return static_cast<Wide>(static_cast<UnsignedWide>(a) * static_cast<UnsignedWide>(b));
}
template <typename Float>
Float product(Float a, Float b) {
  return a * b;
}

Wide fold(RedOp op, Wide a, Wide b) {
  switch (op) {
    case RedOp::kProd: return product(a, b);
    case RedOp::kMax: return std::max(a, b);
    case RedOp::kMin: return std::min(a, b);
    default: return a + b;
  }
}

template <typename T>
struct Codec {  // integers, float32, float64
  using Value = std::conditional_t<std::is_integral_v<T>, Wide, T>;
  static Value get(DataType, std::uint64_t bits) {
    T value;
    std::memcpy(&value, &bits, sizeof value);
    return static_cast<Value>(value);
  }
  static std::uint64_t put(DataType, Value value) {
    const T stored = static_cast<T>(value);  // integers wrap
    std::uint64_t bits = 0;
    std::memcpy(&bits, &stored, sizeof stored);
    return bits;
  }
  /// Back to what the type holds: integers wrap after each operation.
  static Value wrap(Value value) { return static_cast<Value>(static_cast<T>(value)); }
};
struct SmallCodec {
  using Value = float;
  static Value get(DataType type, std::uint64_t bits) {
    return static_cast<float>(decode(format_of(type), static_cast<std::uint32_t>(bits)));
  }
  static std::uint64_t put(DataType type, Value value) { return encode(format_of(type), value); }
  static Value wrap(Value value) { return value; }
};

struct KernelCase {
  DataType type = DataType::kFloat32;
  RedOp op = RedOp::kSum;
  int scaled_source = -1;
  std::uint64_t scalar = 0;
  std::uint32_t divisor = 1;
};

template <typename C>
std::uint64_t combine_one(const KernelCase& c, const std::vector<std::uint64_t>& operands) {
  using Value = typename C::Value;
  Value y{};
  for (std::size_t s = 0; s < operands.size(); ++s) {
    Value x = C::get(c.type, operands[s]);
    if (static_cast<int>(s) == c.scaled_source) x = C::wrap(product(x, C::get(c.type, c.scalar)));
    y = s == 0 ? x : C::wrap(fold(c.op, y, x));
  }
  if (c.divisor > 1) y = y / static_cast<Value>(c.divisor);
  return C::put(c.type, y);
}

std::uint64_t reference(const KernelCase& c, const std::vector<std::uint64_t>& operands) {
  if (operands.size() == 1 && c.scaled_source != 0 && c.divisor <= 1) return operands[0];
  switch (c.type) {
    case DataType::kInt8: return combine_one<Codec<std::int8_t>>(c, operands);
    case DataType::kUint8: return combine_one<Codec<std::uint8_t>>(c, operands);
    case DataType::kInt32: return combine_one<Codec<std::int32_t>>(c, operands);
    case DataType::kUint32: return combine_one<Codec<std::uint32_t>>(c, operands);
    case DataType::kInt64: return combine_one<Codec<std::int64_t>>(c, operands);
    case DataType::kUint64: return combine_one<Codec<std::uint64_t>>(c, operands);
    case DataType::kFloat32: return combine_one<Codec<float>>(c, operands);
    case DataType::kFloat64: return combine_one<Codec<double>>(c, operands);
    default: return combine_one<SmallCodec>(c, operands);
  }
}

bool is_nan(DataType type, std::uint64_t bits) {
  switch (type) {
    case DataType::kFloat32: return std::isnan(std::bit_cast<float>(static_cast<unsigned>(bits)));
    case DataType::kFloat64: return std::isnan(std::bit_cast<double>(bits));
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat8e4m3:
    case DataType::kFloat8e5m2:
      return std::isnan(decode(format_of(type), static_cast<std::uint32_t>(bits)));
    default: return false;
  }
}

bool same(DataType type, std::uint64_t got, std::uint64_t expected) {
  return got == expected || (is_nan(type, got) && is_nan(type, expected));
}

// ---- data ---------------------------------------------------------------------------------------

std::uint64_t truncate_to(std::size_t size, std::uint64_t bits) {
  return size == 8 ? bits : bits & ((std::uint64_t{1} << (8 * size)) - 1);
}

/// Codes that are special in some type: zeros, ones, subnormals, limits, infinities, NaN.
std::vector<std::uint64_t> special_codes(DataType type) {
  switch (type) {
    case DataType::kFloat32:
      return {0,          0x80000000, 0x3f800000, 0xbf800000, 1,          0x80000001, 0x7fffff,
              0x7f7fffff, 0xff7fffff, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001};
    case DataType::kFloat64:
      return {0,
              std::uint64_t{1} << 63,
              std::bit_cast<std::uint64_t>(1.0),
              std::bit_cast<std::uint64_t>(-1.0),
              1,
              std::bit_cast<std::uint64_t>(std::numeric_limits<double>::max()),
              std::bit_cast<std::uint64_t>(std::numeric_limits<double>::lowest()),
              std::bit_cast<std::uint64_t>(std::numeric_limits<double>::infinity()),
              std::bit_cast<std::uint64_t>(-std::numeric_limits<double>::infinity()),
              std::bit_cast<std::uint64_t>(std::numeric_limits<double>::quiet_NaN())};
    case DataType::kFloat16:
      return {0,     0x8000, 0x3c00, 0xbc00, 1,      0x8001, 0x3ff,
              0x400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01};
    case DataType::kBfloat16:
      return {0,    0x8000, 0x3f80, 0xbf80, 1,      0x8001, 0x7f,
              0x80, 0x7f7f, 0xff7f, 0x7f80, 0xff80, 0x7fc0, 0xffc1};
    case DataType::kFloat8e4m3: return {0, 0x80, 0x38, 0xb8, 1, 0x81, 7, 8, 0x7e, 0xfe, 0x7f, 0xff};
    case DataType::kFloat8e5m2:
      return {0, 0x80, 0x3c, 0xbc, 1, 0x81, 3, 4, 0x7b, 0xfb, 0x7c, 0xfc, 0x7f, 0xfe};
    default: {
      const std::size_t size = size_of(type);
      const std::uint64_t top = std::uint64_t{1} << (8 * size - 1);
      return {0, 1, truncate_to(size, ~std::uint64_t{0}), top, top - 1, top + 1, 2, 127};
    }
  }
}

/// Half random bits, a quarter numbers near 1, a quarter special.
std::uint64_t random_code(DataType type, std::mt19937_64& random) {
  static const auto special = [] {
    std::vector<std::vector<std::uint64_t>> codes;
    for (int t = 0; t < kNumDataTypes; ++t) codes.push_back(special_codes(DataType(t)));
    return codes;
  }();
  const auto& list = special[static_cast<std::size_t>(type)];
  const std::uint64_t r = random();
  const std::size_t size = size_of(type);
  if (r % 4 == 0) return list[(r >> 8) % list.size()];
  const std::uint64_t bits = random();
  if (r % 4 != 1 || !is_float(type)) return truncate_to(size, bits);
  const double near = 1.0 + static_cast<double>(bits % 4096) / 512.0;
  switch (type) {
    case DataType::kFloat32: return std::bit_cast<std::uint32_t>(static_cast<float>(near));
    case DataType::kFloat64: return std::bit_cast<std::uint64_t>(near);
    default: return encode(format_of(type), near);
  }
}

std::vector<std::byte> random_elements(DataType type, std::size_t count, std::mt19937_64& random) {
  const std::size_t size = size_of(type);
  std::vector<std::byte> bytes(count * size);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t code = random_code(type, random);
    std::memcpy(bytes.data() + i * size, &code, size);
  }
  return bytes;
}

/// `count` elements at an odd address (aligned to the element only) between two canaries.
class Guarded {
 public:
  Guarded(std::size_t bytes, std::size_t offset)
      : offset_(kCanary + offset), bytes_(bytes), memory_(offset_ + bytes + kCanary, kMark) {}
  [[nodiscard]] std::byte* data() { return memory_.data() + offset_; }
  [[nodiscard]] bool intact() const {
    const auto is_mark = [](std::byte b) { return b == kMark; };
    const auto begin = memory_.begin();
    const auto offset = static_cast<std::ptrdiff_t>(offset_);
    return std::all_of(begin, begin + offset, is_mark) &&
           std::all_of(begin + offset + static_cast<std::ptrdiff_t>(bytes_), memory_.end(),
                       is_mark);
  }

 private:
  static constexpr std::size_t kCanary = 64;
  static constexpr std::byte kMark{0xa5};
  std::size_t offset_;
  std::size_t bytes_;
  std::vector<std::byte> memory_;
};

/// Index of the first element that differs, or -1.
std::ptrdiff_t first_difference(DataType type, const std::byte* got, const std::byte* expected,
                                std::size_t count) {
  const std::size_t size = size_of(type);
  if (count == 0 || std::memcmp(got, expected, count * size) == 0) return -1;
  for (std::size_t i = 0; i < count; ++i) {
    if (!same(type, load_bits(got + i * size, size), load_bits(expected + i * size, size))) {
      return static_cast<std::ptrdiff_t>(i);
    }
  }
  return -1;
}

std::string describe(const KernelCase& c) {
  return fmt::format("{} {} scaled {} scalar {:#x} divisor {} on {}", name(c.type), name(c.op),
                     c.scaled_source, c.scalar, c.divisor, vector_target());
}

CombineArgs args_of(const KernelCase& c) {
  CombineArgs args;
  args.type = c.type;
  args.op = c.op;
  args.scaled_source = c.scaled_source;
  args.scalar = c.scalar;
  args.divisor = c.divisor;
  return args;
}

/// Combines rows of codes and compares with the reference.
void expect_combined(const KernelCase& c, const std::vector<std::vector<std::uint64_t>>& rows) {
  const std::size_t size = size_of(c.type);
  const std::size_t count = rows[0].size();
  std::vector<std::vector<std::byte>> sources;
  std::vector<const void*> addresses;
  for (const auto& row : rows) {
    std::vector<std::byte> bytes(count * size);
    for (std::size_t i = 0; i < count; ++i) std::memcpy(bytes.data() + i * size, &row[i], size);
    sources.push_back(std::move(bytes));
  }
  for (const auto& source : sources) addresses.push_back(source.data());
  std::vector<std::byte> result(count * size);
  void* const destination = result.data();
  CombineArgs args = args_of(c);
  args.sources = addresses;
  args.destinations = {&destination, 1};
  args.count = count;
  combine(args);
  std::vector<std::uint64_t> operands(rows.size());
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t s = 0; s < rows.size(); ++s) operands[s] = rows[s][i];
    const std::uint64_t expected = reference(c, operands);
    const std::uint64_t got = load_bits(result.data() + i * size, size);
    ASSERT_TRUE(same(c.type, got, expected))
        << describe(c) << " element " << i << ": " << std::hex << operands[0] << ", "
        << operands.back() << " gave " << got << ", expected " << expected;
  }
}

constexpr std::size_t kCounts[] = {0,  1,  2,  3,  7,  8,   15,   16,   17,
                                   31, 33, 63, 64, 65, 127, 1000, 1023, 4097};
constexpr std::size_t kMaxCount = 4097;

/// Every compiled vector target that this CPU can run.
class Kernels : public ::testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override { detail::use_target(GetParam()); }
  void TearDown() override { detail::use_target(0); }
};

// ---- tests --------------------------------------------------------------------------------------

TEST_P(Kernels, EveryTypeOperatorAndShape) {
  std::mt19937_64 random(1);
  ropewalk::testing::Share share;
  for (int t = 0; t < kNumDataTypes; ++t) {
    for (int o = 0; o < kNumRedOps; ++o) {
      if (!share.next()) continue;
      const KernelCase c{DataType(t), RedOp(o), -1, 0, 1};
      const std::size_t size = size_of(c.type);
      for (std::size_t num_sources = 1; num_sources <= 9; ++num_sources) {
        std::vector<std::vector<std::byte>> originals;
        for (std::size_t s = 0; s < num_sources; ++s) {
          originals.push_back(random_elements(c.type, kMaxCount, random));
        }
        // Elements are independent: one expectation serves every count.
        std::vector<std::byte> expected(kMaxCount * size);
        std::vector<std::uint64_t> operands(num_sources);
        for (std::size_t i = 0; i < kMaxCount; ++i) {
          for (std::size_t s = 0; s < num_sources; ++s) {
            operands[s] = load_bits(originals[s].data() + i * size, size);
          }
          const std::uint64_t bits = reference(c, operands);
          std::memcpy(expected.data() + i * size, &bits, size);
        }
        for (const std::size_t count : kCounts) {
          for (std::size_t num_destinations = 1; num_destinations <= 3; ++num_destinations) {
            // The destination with the index `aliased` is also a source, unless there is none.
            const std::size_t aliased = random() % (2 * num_destinations);
            const std::size_t source_of_alias = random() % num_sources;
            std::vector<Guarded> sources;
            std::vector<Guarded> outputs;
            for (std::size_t s = 0; s < num_sources; ++s) {
              sources.emplace_back(count * size, random() % 8 * size);
              if (count > 0) std::memcpy(sources[s].data(), originals[s].data(), count * size);
            }
            for (std::size_t k = 0; k < num_destinations; ++k) {
              outputs.emplace_back(count * size, random() % 8 * size);
            }
            std::vector<const void*> from;
            std::vector<void*> to;
            for (auto& source : sources) from.push_back(source.data());
            for (auto& output : outputs) to.push_back(output.data());
            const bool in_place = aliased < num_destinations;
            if (in_place) to[aliased] = sources[source_of_alias].data();
            CombineArgs args = args_of(c);
            args.sources = from;
            args.destinations = to;
            args.count = count;
            args.streaming_output = random() % 4 == 0;
            combine(args);
            const auto where = [&] {
              return fmt::format("{}: {} sources, {} destinations, count {}, alias {}{}",
                                 describe(c), num_sources, num_destinations, count,
                                 in_place ? static_cast<int>(source_of_alias) : -1,
                                 args.streaming_output ? ", streaming" : "");
            };
            for (std::size_t k = 0; k < num_destinations; ++k) {
              ASSERT_EQ(
                  first_difference(c.type, static_cast<std::byte*>(to[k]), expected.data(), count),
                  -1)
                  << where() << " destination " << k;
              ASSERT_TRUE(outputs[k].intact()) << where() << " destination " << k;
            }
            for (std::size_t s = 0; s < num_sources; ++s) {
              ASSERT_TRUE(sources[s].intact()) << where() << " source " << s;
              if (in_place && s == source_of_alias) continue;
              ASSERT_TRUE(count == 0 ||
                          std::memcmp(sources[s].data(), originals[s].data(), count * size) == 0)
                  << where() << " source " << s << " changed";
            }
          }
        }
      }
    }
  }
}

TEST_P(Kernels, TouchesNoMemoryBeyondItsBuffers) {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  // Three pages each, of which the first and the last may not be touched.
  constexpr std::size_t kAreas = 3;
  std::byte* areas[kAreas];
  for (auto& area : areas) {
    void* memory = mmap(nullptr, 3 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(memory, MAP_FAILED);
    area = static_cast<std::byte*>(memory);
    ASSERT_EQ(mprotect(area + page, page, PROT_READ | PROT_WRITE), 0);
  }
  for (int t = 0; t < kNumDataTypes; ++t) {
    for (const bool at_end : {false, true}) {
      for (std::size_t count = 1; count <= 140; ++count) {
        for (const auto& c :
             {KernelCase{DataType(t)}, KernelCase{DataType(t), RedOp::kProd, 1, 0, 3}}) {
          const std::size_t skip = at_end ? page - count * size_of(c.type) : 0;
          const void* const sources[] = {areas[0] + page + skip, areas[1] + page + skip};
          void* const destinations[] = {areas[2] + page + skip};
          CombineArgs args = args_of(c);
          args.sources = sources;
          args.destinations = destinations;
          args.count = count;
          combine(args);
          args.streaming_output = true;
          combine(args);
        }
      }
    }
  }
  for (auto& area : areas) munmap(area, 3 * page);
}

TEST_P(Kernels, ScalesOneSource) {
  std::mt19937_64 random(2);
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = DataType(t);
    for (const RedOp op : {RedOp::kPreMulSum, RedOp::kProd, RedOp::kMax, RedOp::kMin}) {
      for (std::size_t num_sources = 1; num_sources <= 4; ++num_sources) {
        for (std::size_t scaled = 0; scaled < num_sources; ++scaled) {
          for (const std::size_t count : {1u, 3u, 17u, 200u}) {
            const KernelCase c{type, op, static_cast<int>(scaled), random_code(type, random), 1};
            std::vector<std::vector<std::uint64_t>> rows(num_sources);
            for (auto& row : rows) {
              for (std::size_t i = 0; i < count; ++i) row.push_back(random_code(type, random));
            }
            ASSERT_NO_FATAL_FAILURE(expect_combined(c, rows));
          }
        }
      }
    }
  }
}

TEST_P(Kernels, DividesTruncatingTowardsZero) {
  std::mt19937_64 random(3);
  for (int t = 0; t < kNumDataTypes; ++t) {
    const auto type = DataType(t);
    for (const std::uint32_t divisor :
         {2u, 3u, 4u, 5u, 6u, 7u, 9u, 10u, 127u, 128u, 255u, 256u, 1000u, 65535u, 65537u,
          0x7fffffffu, 0x80000000u, 0x80000001u, 0xffffffffu}) {
      for (std::size_t num_sources = 1; num_sources <= 3; ++num_sources) {
        const KernelCase c{type, RedOp::kAvg, num_sources == 3 ? 1 : -1, random_code(type, random),
                           divisor};
        std::vector<std::vector<std::uint64_t>> rows(num_sources);
        for (auto& row : rows) {
          for (std::size_t i = 0; i < 100; ++i) row.push_back(random_code(type, random));
          for (const std::uint64_t code : special_codes(type)) row.push_back(code);
        }
        ASSERT_NO_FATAL_FAILURE(expect_combined(c, rows));
      }
    }
  }
}

TEST_P(Kernels, Float8PairsExhaustively) {
  std::vector<std::vector<std::uint64_t>> rows(2);
  for (std::uint64_t a = 0; a < 256; ++a) {
    for (std::uint64_t b = 0; b < 256; ++b) {
      rows[0].push_back(a);
      rows[1].push_back(b);
    }
  }
  for (const DataType type : {DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    for (int o = 0; o < kNumRedOps; ++o) {
      ASSERT_NO_FATAL_FAILURE(expect_combined({type, RedOp(o), -1, 0, 1}, rows));
    }
  }
}

TEST_P(Kernels, EveryCodeOfSmallFloatsSurvivesAndRounds) {
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const FloatFormat f = format_of(type);
    std::vector<std::vector<std::uint64_t>> rows(1);
    for (std::uint64_t code = 0; code < 2 * f.sign_bit(); ++code) rows[0].push_back(code);
    // Scaling by 1 decodes and encodes; every NaN stays one.
    const std::uint64_t one = encode(f, 1.0);
    ASSERT_NO_FATAL_FAILURE(expect_combined({type, RedOp::kSum, 0, one, 1}, rows));
    // Every other factor makes ties, subnormals and overflow of some codes.
    for (const double factor : {-1.0, 0.5, 0.25, 1.5, 0.75, 3.0, 0.0625, 1.0 / 1024, 240.0, 1e-5}) {
      ASSERT_NO_FATAL_FAILURE(expect_combined({type, RedOp::kSum, 0, encode(f, factor), 1}, rows));
    }
    for (const std::uint64_t special : special_codes(type)) {
      ASSERT_NO_FATAL_FAILURE(expect_combined({type, RedOp::kProd, 0, special, 1}, rows));
    }
  }
}

TEST_P(Kernels, SumsOfEveryCodeOfSmallFloats) {
  for (const DataType type : {DataType::kFloat16, DataType::kBfloat16}) {
    std::vector<std::vector<std::uint64_t>> rows(2);
    for (std::uint64_t code = 0; code < 65536; ++code) rows[0].push_back(code);
    ropewalk::testing::Share share;
    for (const std::uint64_t special : special_codes(type)) {
      if (!share.next()) continue;
      rows[1].assign(65536, special);
      for (const RedOp op : {RedOp::kSum, RedOp::kMax, RedOp::kMin}) {
        ASSERT_NO_FATAL_FAILURE(expect_combined({type, op, -1, 0, 1}, rows));
      }
    }
  }
}

TEST_P(Kernels, CopiesToEveryDestination) {
  std::mt19937_64 random(4);
  std::vector<std::size_t> counts(std::begin(kCounts), std::end(kCounts));
  counts.push_back((std::size_t{40} << 10) + 5);
  counts.push_back(kStreamingCopyBytes - 1);
  counts.push_back(kStreamingCopyBytes + 4099);
  for (const std::size_t bytes : counts) {
    const auto original = random_elements(DataType::kUint8, bytes, random);
    for (std::size_t num_destinations = 1; num_destinations <= 3; ++num_destinations) {
      for (const bool in_place : {false, true}) {
        Guarded source(bytes, random() % 64);
        if (bytes > 0) std::memcpy(source.data(), original.data(), bytes);
        std::vector<Guarded> outputs;
        std::vector<void*> to;
        for (std::size_t k = 0; k < num_destinations; ++k) {
          outputs.emplace_back(bytes, random() % 64);
        }
        for (auto& output : outputs) to.push_back(output.data());
        if (in_place) to.back() = source.data();
        if (!in_place && random() % 2 == 0) {
          copy_streaming(to, source.data(), bytes);
        } else {
          copy(to, source.data(), bytes);
        }
        for (std::size_t k = 0; k < num_destinations; ++k) {
          ASSERT_TRUE(bytes == 0 || std::memcmp(to[k], original.data(), bytes) == 0)
              << bytes << " bytes, destination " << k << " of " << num_destinations;
          ASSERT_TRUE(outputs[k].intact());
        }
        ASSERT_TRUE(source.intact());
      }
    }
  }
}

std::vector<std::int64_t> targets() { return detail::usable_targets(); }

INSTANTIATE_TEST_SUITE_P(Targets, Kernels, ::testing::ValuesIn(targets()), [](const auto& target) {
  detail::use_target(target.param);
  const std::string spelled = vector_target();
  detail::use_target(0);
  return spelled;
});

TEST(KernelsTarget, IsTheBestThatIsUsable) {
  detail::use_target(targets().front());
  const std::string best = vector_target();
  detail::use_target(0);
  EXPECT_EQ(vector_target(), best);
}

TEST(KernelsReference, AgreesWithPublishedValues) {
  // OCP 8-bit Floating Point Specification, table 2; IEEE 754 binary16; bfloat16.
  EXPECT_EQ(decode(format_of(DataType::kFloat8e4m3), 0x7e), 448);
  EXPECT_EQ(decode(format_of(DataType::kFloat8e4m3), 0x08), 0x1p-6);
  EXPECT_EQ(decode(format_of(DataType::kFloat8e4m3), 0x01), 0x1p-9);
  EXPECT_TRUE(std::isnan(decode(format_of(DataType::kFloat8e4m3), 0xff)));
  EXPECT_EQ(decode(format_of(DataType::kFloat8e5m2), 0x7b), 57344);
  EXPECT_EQ(decode(format_of(DataType::kFloat8e5m2), 0x01), 0x1p-16);
  EXPECT_TRUE(std::isinf(decode(format_of(DataType::kFloat8e5m2), 0x7c)));
  EXPECT_EQ(decode(format_of(DataType::kFloat16), 0x7bff), 65504);
  EXPECT_EQ(decode(format_of(DataType::kFloat16), 0x0001), 0x1p-24);
  EXPECT_EQ(decode(format_of(DataType::kBfloat16), 0x3f80), 1);
  EXPECT_EQ(encode(format_of(DataType::kFloat8e4m3), 464), 0x7eu);  // a tie, to even
  EXPECT_EQ(encode(format_of(DataType::kFloat8e4m3), 464.01), 0x7fu);
  EXPECT_EQ(encode(format_of(DataType::kFloat16), 65519.99), 0x7bffu);
  EXPECT_EQ(encode(format_of(DataType::kFloat16), 65520), 0x7c00u);
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const FloatFormat f = format_of(type);
    for (std::uint32_t code = 0; code < 2 * f.sign_bit(); ++code) {
      const double value = decode(f, code);
      if (std::isnan(value)) continue;
      ASSERT_EQ(encode(f, value), code) << name(type);
    }
  }
}

}  // namespace
}  // namespace ropewalk::executor
