// Element types as the kernels see them: how they are stored, decoded, combined and encoded.
// Compiled once per vector target.
#if defined(ROPEWALK_EXECUTOR_KERNELS_ELEMENTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ROPEWALK_EXECUTOR_KERNELS_ELEMENTS_INL_H_
#undef ROPEWALK_EXECUTOR_KERNELS_ELEMENTS_INL_H_
#else
#define ROPEWALK_EXECUTOR_KERNELS_ELEMENTS_INL_H_
#endif

#include <hwy/highway.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Whether float16 <-> float32 is an instruction. Where it is not, Highway's emulation truncates, so
// SmallFloat below does it.
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL || \
    HWY_ARCH_ARM_A64
inline constexpr bool kConvertsFloat16 = true;
#else
inline constexpr bool kConvertsFloat16 = false;
#endif

/// Division by a number that is known before the loop.
template <typename T>
class Divisor {
 public:
  explicit Divisor(std::uint32_t divisor) : divisor_(divisor) {
    if (divisor < 2) return;
    if constexpr (std::is_integral_v<T>) {
      // Division as multiplication by an invariant: Granlund and Montgomery, "Division by Invariant
      // Integers using Multiplication", PLDI 1994, figure 4.1, for 64-bit words.
      const auto log2_up = static_cast<int>(std::bit_width(divisor - 1));
      const auto excess = (std::uint64_t{1} << log2_up) - divisor;
      multiplier_ = static_cast<std::uint64_t>((static_cast<Wide>(excess) << 64) / divisor) + 1;
      shift_ = log2_up - 1;
    }
  }
  HWY_INLINE bool divides() const { return divisor_ > 1; }

  template <class D>
  HWY_INLINE hn::Vec<D> divide(D d, hn::Vec<D> v) const {
    if constexpr (std::is_integral_v<T>) {
      HWY_ALIGN T lanes[hn::MaxLanes(D())];
      hn::Store(v, d, lanes);
      for (std::size_t i = 0; i < hn::Lanes(d); ++i) lanes[i] = divide_one(lanes[i]);
      return hn::Load(d, lanes);
    } else {
      return hn::Div(v, hn::Set(d, static_cast<T>(divisor_)));
    }
  }

 private:
  __extension__ using Wide = unsigned __int128;

  HWY_INLINE T divide_one(T value) const {
    const bool negative = value < 0;
    // With its sign, modulo 2^64.
    const auto wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    const std::uint64_t n = negative ? 0 - wide : wide;
    const auto high = static_cast<std::uint64_t>((static_cast<Wide>(multiplier_) * n) >> 64);
    const std::uint64_t quotient = (high + ((n - high) >> 1)) >> shift_;
    return static_cast<T>(negative ? 0 - quotient : quotient);
  }

  std::uint32_t divisor_;
  std::uint64_t multiplier_ = 0;
  int shift_ = 0;
};

/// Types that are combined as they are stored.
template <typename T>
struct Plain {
  using Stored = T;
  using Compute = T;

  static T decode_scalar(std::uint64_t bits) {
    T value;
    if constexpr (std::endian::native == std::endian::big) bits <<= 64 - 8 * sizeof(T);
    std::memcpy(&value, &bits, sizeof(T));
    return value;
  }
  template <class D, class V>
  static HWY_INLINE V decode(D, V v) {
    return v;
  }
  template <class D, class V>
  static HWY_INLINE V encode(D, V v) {
    return v;
  }
};

template <typename T>
struct Integer : Plain<T> {
  template <class D, class V>
  static HWY_INLINE V add(D, V a, V b) {
    return hn::Add(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V max(D, V a, V b) {
    return hn::Max(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V min(D, V a, V b) {
    return hn::Min(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V multiply(D d, V a, V b) {
    if constexpr (hn::MaxLanes(D()) == 1) {
      using Word = std::conditional_t<(sizeof(T) > 4), std::uint64_t, std::uint32_t>;
      return hn::Set(
          d, static_cast<T>(static_cast<Word>(hn::GetLane(a)) * static_cast<Word>(hn::GetLane(b))));
    } else if constexpr (sizeof(T) == 1) {
      // No CPU multiplies bytes: even and odd ones as 16-bit products, of which the low halves
      // stay.
      const hn::Repartition<std::uint16_t, D> d16;
      const auto a16 = hn::BitCast(d16, a);
      const auto b16 = hn::BitCast(d16, b);
      const auto even = hn::And(hn::Mul(a16, b16), hn::Set(d16, std::uint16_t{0xff}));
      const auto odd = hn::Mul(hn::ShiftRight<8>(a16), hn::ShiftRight<8>(b16));
      return hn::BitCast(d, hn::Or(even, hn::ShiftLeft<8>(odd)));
    } else {
      return hn::Mul(a, b);
    }
  }
};

/// Operators of all float types. Ties of max and min keep `a`, and a NaN loses against a number:
/// `b` is taken only if it is greater (less), or `a` is NaN.
struct FloatOperators {
  template <class D, class V>
  static HWY_INLINE V add(D, V a, V b) {
    return hn::Add(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V multiply(D, V a, V b) {
    return hn::Mul(a, b);
  }
  template <class D, class V>
  static HWY_INLINE V max(D, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(a)), b, a);
  }
  template <class D, class V>
  static HWY_INLINE V min(D, V a, V b) {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(a)), b, a);
  }
};

template <typename T>
struct Float : Plain<T>, FloatOperators {};

/// Decodes one element kept in the low bits of `bits`.
template <class E>
HWY_INLINE float decode_one(std::uint64_t bits) {
  const hn::CappedTag<float, 1> d;
  const hn::Rebind<typename E::Stored, decltype(d)> ds;
  return hn::GetLane(E::decode(d, hn::Set(ds, static_cast<typename E::Stored>(bits))));
}

struct Bfloat16 : FloatOperators {
  using Stored = std::uint16_t;
  using Compute = float;

  static float decode_scalar(std::uint64_t bits) { return decode_one<Bfloat16>(bits); }

  template <class D, class VS>
  static HWY_INLINE hn::Vec<D> decode(D d, VS stored) {
    const hn::RebindToUnsigned<D> du;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, stored)));
  }
  template <class DS, class V>
  static HWY_INLINE hn::Vec<DS> encode(DS ds, V v) {
    const hn::DFromV<V> d;
    const hn::RebindToUnsigned<decltype(d)> du;
    const hn::RebindToSigned<decltype(d)> di;
    const auto bits = hn::BitCast(du, v);
    const auto upper = hn::ShiftRight<16>(bits);
    // Half of the last kept bit, less one unless the kept part is odd: ties go to even.
    const auto odd = hn::And(upper, hn::Set(du, 1u));
    const auto half = hn::Add(odd, hn::Set(du, 0x7fffu));
    const auto rounded = hn::ShiftRight<16>(hn::Add(bits, half));
    const auto quiet = hn::Or(upper, hn::Set(du, 0x40u));
    const auto is_nan = hn::RebindMask(du, hn::IsNaN(v));
    return hn::DemoteTo(ds, hn::BitCast(di, hn::IfThenElse(is_nan, quiet, rounded)));
  }
};

/// A float of sign, kExponentBits and kMantissaBits, with subnormals. With kInfinity the largest
/// exponent means infinity and NaN as in IEEE 754; without, only the code of all ones is NaN (OCP
/// 8-bit Floating Point Specification, E4M3).
template <typename Bits, int kExponentBits, int kMantissaBits, bool kInfinity>
struct SmallFloat : FloatOperators {
  using Stored = Bits;
  using Compute = float;

  static constexpr int kBits = 1 + kExponentBits + kMantissaBits;
  static_assert(kBits == 8 * sizeof(Bits));
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr int kShift = 23 - kMantissaBits;
  static constexpr int kMagnitude = (1 << (kBits - 1)) - 1;
  /// What overflow becomes: infinity, or NaN where there is none.
  static constexpr int kOverflow =
      kInfinity ? ((1 << kExponentBits) - 1) << kMantissaBits : kMagnitude;

  /// The bits of the float32 2^exponent.
  static constexpr int power_of_two(int exponent) { return (127 + exponent) << 23; }

  static float decode_scalar(std::uint64_t bits) { return decode_one<SmallFloat>(bits); }

  template <class D, class VS>
  static HWY_INLINE hn::Vec<D> decode(D d, VS stored) {
    const hn::RebindToSigned<D> di;
    const auto x = hn::PromoteTo(di, stored);
    const auto magnitude = hn::And(x, hn::Set(di, kMagnitude));
    const auto sign = hn::ShiftLeft<32 - kBits>(hn::Xor(x, magnitude));
    const auto normal = hn::Add(hn::ShiftLeft<kShift>(magnitude), hn::Set(di, (127 - kBias) << 23));
    // A subnormal m * 2^(1 - bias - mantissa bits), as the difference of two normal numbers: right
    // even where the CPU is told to flush float32 subnormals.
    const auto subnormal =
        hn::BitCast(di, hn::Sub(hn::BitCast(d, hn::Add(normal, hn::Set(di, 1 << 23))),
                                hn::BitCast(d, hn::Set(di, power_of_two(1 - kBias)))));
    const auto finite =
        hn::IfThenElse(hn::Lt(magnitude, hn::Set(di, 1 << kMantissaBits)), subnormal, normal);
    const auto special = hn::Gt(magnitude, hn::Set(di, kOverflow - 1));
    const auto all_ones = hn::Or(finite, hn::Set(di, 0x7f800000));
    return hn::BitCast(d, hn::Or(sign, hn::IfThenElse(special, all_ones, finite)));
  }

  template <class DS, class V>
  static HWY_INLINE hn::Vec<DS> encode(DS ds, V v) {
    const hn::DFromV<V> d;
    const hn::RebindToSigned<decltype(d)> di;
    const hn::RebindToUnsigned<decltype(d)> du;
    const auto x = hn::BitCast(di, v);
    const auto magnitude = hn::And(x, hn::Set(di, 0x7fffffff));
    const auto sign =
        hn::BitCast(di, hn::ShiftRight<32 - kBits>(hn::BitCast(du, hn::Xor(x, magnitude))));

    // Normal: drop kShift bits, ties to even; a carry into the exponent is just right. Values
    // beyond the largest exponent are clamped first, so that the addition cannot wrap.
    const auto near = hn::Min(magnitude, hn::Set(di, power_of_two(kBias + 2)));
    const auto odd = hn::And(hn::ShiftRight<kShift>(near), hn::Set(di, 1));
    const auto half = hn::Add(odd, hn::Set(di, (1 << (kShift - 1)) - 1));
    const auto rounded = hn::ShiftRight<kShift>(hn::Add(near, half));
    const auto normal = hn::Sub(rounded, hn::Set(di, (127 - kBias) << kMantissaBits));

    // Subnormal: adding a power of two whose last place is one subnormal step lets the float adder
    // round to nearest-even.
    constexpr int kStep = power_of_two(24 - kMantissaBits - kBias);
    const auto sum = hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, hn::Set(di, kStep)));
    const auto subnormal = hn::Sub(hn::BitCast(di, sum), hn::Set(di, kStep));

    const auto is_subnormal = hn::Lt(magnitude, hn::Set(di, power_of_two(1 - kBias)));
    const auto finite = hn::IfThenElse(is_subnormal, subnormal, normal);
    const auto bounded = hn::Min(finite, hn::Set(di, kOverflow));
    const auto is_nan = hn::Gt(magnitude, hn::Set(di, 0x7f800000));
    const auto code = hn::IfThenElse(is_nan, hn::Set(di, kMagnitude), bounded);
    return hn::DemoteTo(ds, hn::Or(code, sign));
  }
};

using SoftFloat16 = SmallFloat<std::uint16_t, 5, 10, true>;
using Float8e4m3 = SmallFloat<std::uint8_t, 4, 3, false>;
using SoftFloat8e5m2 = SmallFloat<std::uint8_t, 5, 2, true>;

struct Float16 : SoftFloat16 {
  static float decode_scalar(std::uint64_t bits) { return decode_one<Float16>(bits); }

  template <class D, class VS>
  static HWY_INLINE hn::Vec<D> decode(D d, VS stored) {
    if constexpr (kConvertsFloat16) {
      const hn::Rebind<hwy::float16_t, D> df16;
      return hn::PromoteTo(d, hn::BitCast(df16, stored));
    } else {
      return SoftFloat16::decode(d, stored);
    }
  }
  template <class DS, class V>
  static HWY_INLINE hn::Vec<DS> encode(DS ds, V v) {
    if constexpr (kConvertsFloat16) {
      const hn::Rebind<hwy::float16_t, DS> df16;
      return hn::BitCast(ds, hn::DemoteTo(df16, v));
    } else {
      return SoftFloat16::encode(ds, v);
    }
  }
};

struct Float8e5m2 : SoftFloat8e5m2 {
  static float decode_scalar(std::uint64_t bits) { return decode_one<Float8e5m2>(bits); }

  template <class D, class VS>
  static HWY_INLINE hn::Vec<D> decode(D d, VS stored) {
    if constexpr (kConvertsFloat16) {
      // The upper half of a float16.
      const hn::Rebind<std::uint16_t, D> d16;
      return Float16::decode(d, hn::ShiftLeft<8>(hn::PromoteTo(d16, stored)));
    } else {
      return SoftFloat8e5m2::decode(d, stored);
    }
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#endif
