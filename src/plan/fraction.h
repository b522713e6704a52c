// Exact fractions for rates and weights: a claim of optimality is an equality, not a comparison of
// rounded numbers.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace ropewalk::plan {

/// A fraction in lowest terms with a positive denominator.
///
/// Numerator and denominator have 128 bits. An operation whose result needs more throws Error
/// kInvalidArgument: capacities then have more digits than exact planning can carry.
class Fraction {
 public:
  using Integer = __int128;

  constexpr Fraction() = default;
  // Whole numbers are fractions wherever one is asked for.
  constexpr Fraction(Integer value) : numerator_(value) {}  // NOLINT(google-explicit-constructor)
  /// @throws Error kInvalidArgument if `denominator` is zero
  Fraction(Integer numerator, Integer denominator);

  /// The fraction that a decimal such as 18.43 stands for: the nearest multiple of 10^-`digits`.
  /// @throws Error kInvalidArgument if `value` is not finite, or beyond 10^15
  static Fraction from_decimal(double value, int digits);
  /// "24", "150/7". @throws Error kInvalidArgument for anything else
  static Fraction parse(const std::string& text);

  [[nodiscard]] Integer numerator() const { return numerator_; }
  [[nodiscard]] Integer denominator() const { return denominator_; }
  [[nodiscard]] double to_double() const;
  /// "24" or "150/7".
  [[nodiscard]] std::string to_string() const;
  [[nodiscard]] bool is_whole() const { return denominator_ == 1; }
  /// The largest whole number that is not above this one.
  [[nodiscard]] Integer floor() const;

  Fraction& operator+=(const Fraction& other);
  Fraction& operator-=(const Fraction& other);
  Fraction& operator*=(const Fraction& other);
  /// @throws Error kInvalidArgument if `other` is zero
  Fraction& operator/=(const Fraction& other);

  friend Fraction operator+(Fraction a, const Fraction& b) { return a += b; }
  friend Fraction operator-(Fraction a, const Fraction& b) { return a -= b; }
  friend Fraction operator*(Fraction a, const Fraction& b) { return a *= b; }
  friend Fraction operator/(Fraction a, const Fraction& b) { return a /= b; }
  friend bool operator==(const Fraction& a, const Fraction& b) = default;
  friend std::strong_ordering operator<=>(const Fraction& a, const Fraction& b);

 private:
  Integer numerator_ = 0;
  Integer denominator_ = 1;
};

/// The largest number that divides both; 0 only for two zeros.
Fraction::Integer greatest_common_divisor(Fraction::Integer a, Fraction::Integer b);

}  // namespace ropewalk::plan
