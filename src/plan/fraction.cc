#include "plan/fraction.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace ropewalk::plan {

namespace {

using Integer = Fraction::Integer;

Integer checked_multiply(Integer a, Integer b) {
  Integer out = 0;
  if (__builtin_mul_overflow(a, b, &out)) {
    throw Error(Errc::kInvalidArgument,
                "exact planning needs more than 128 bits: give capacities with fewer digits");
  }
  return out;
}

Integer checked_add(Integer a, Integer b) {
  Integer out = 0;
  if (__builtin_add_overflow(a, b, &out)) {
    throw Error(Errc::kInvalidArgument,
                "exact planning needs more than 128 bits: give capacities with fewer digits");
  }
  return out;
}

std::string digits_of(Integer value) {
  if (value == 0) {
    return "0";
  }
  const bool negative = value < 0;
  std::string out;
  while (value != 0) {
    const int digit = static_cast<int>(value % 10);
    out.push_back(static_cast<char>('0' + (digit < 0 ? -digit : digit)));
    value /= 10;
  }
  if (negative) {
    out.push_back('-');
  }
  std::reverse(out.begin(), out.end());
  return out;
}

Integer parse_whole(const std::string& text, const std::string& all) {
  std::size_t at = 0;
  const bool negative = !text.empty() && text[0] == '-';
  at += negative ? 1 : 0;
  // 30 digits stay far below 2^127.
  if (at == text.size() || text.size() - at > 30) {
    throw Error(Errc::kInvalidArgument, "\"{}\" is no fraction such as 150/7", all);
  }
  Integer value = 0;
  for (; at < text.size(); ++at) {
    if (text[at] < '0' || text[at] > '9') {
      throw Error(Errc::kInvalidArgument, "\"{}\" is no fraction such as 150/7", all);
    }
    value = value * 10 + (text[at] - '0');
  }
  return negative ? -value : value;
}

}  // namespace

Integer greatest_common_divisor(Integer a, Integer b) {
  a = a < 0 ? -a : a;
  b = b < 0 ? -b : b;
  while (b != 0) {
    const Integer rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

Fraction::Fraction(Integer numerator, Integer denominator) {
  if (denominator == 0) {
    throw Error(Errc::kInvalidArgument, "a fraction's denominator is zero");
  }
  const Integer common = greatest_common_divisor(numerator, denominator);
  const Integer sign = denominator < 0 ? -1 : 1;
  numerator_ = sign * numerator / common;
  denominator_ = sign * denominator / common;
}

Fraction Fraction::from_decimal(double value, int digits) {
  if (!std::isfinite(value) || std::fabs(value) > 1e15) {
    throw Error(Errc::kInvalidArgument, "{} is no number that can be planned with", value);
  }
  Integer scale = 1;
  for (int i = 0; i < digits; ++i) {
    scale *= 10;
  }
  const auto scaled = static_cast<long double>(value) * static_cast<long double>(scale);
  return Fraction(static_cast<Integer>(std::roundl(scaled)), scale);
}

Fraction Fraction::parse(const std::string& text) {
  const std::size_t slash = text.find('/');
  if (slash == std::string::npos) {
    return Fraction(parse_whole(text, text));
  }
  return Fraction(parse_whole(text.substr(0, slash), text),
                  parse_whole(text.substr(slash + 1), text));
}

double Fraction::to_double() const {
  return static_cast<double>(static_cast<long double>(numerator_) /
                             static_cast<long double>(denominator_));
}

std::string Fraction::to_string() const {
  return is_whole() ? digits_of(numerator_) : digits_of(numerator_) + "/" + digits_of(denominator_);
}

Integer Fraction::floor() const {
  const Integer towards_zero = numerator_ / denominator_;
  return numerator_ < 0 && numerator_ % denominator_ != 0 ? towards_zero - 1 : towards_zero;
}

Fraction& Fraction::operator+=(const Fraction& other) {
  // Over the least common denominator: sums of many weights stay small.
  const Integer common = greatest_common_divisor(denominator_, other.denominator_);
  const Integer mine = other.denominator_ / common;
  const Integer theirs = denominator_ / common;
  *this = Fraction(
      checked_add(checked_multiply(numerator_, mine), checked_multiply(other.numerator_, theirs)),
      checked_multiply(denominator_, mine));
  return *this;
}

Fraction& Fraction::operator-=(const Fraction& other) {
  Fraction negated = other;
  negated.numerator_ = -negated.numerator_;
  return *this += negated;
}

Fraction& Fraction::operator*=(const Fraction& other) {
  // Cancelling crosswise first keeps the products small.
  const Fraction a(numerator_, other.denominator_);
  const Fraction b(other.numerator_, denominator_);
  numerator_ = checked_multiply(a.numerator_, b.numerator_);
  denominator_ = checked_multiply(a.denominator_, b.denominator_);
  return *this;
}

Fraction& Fraction::operator/=(const Fraction& other) {
  return *this *= Fraction(other.denominator_, other.numerator_);
}

std::strong_ordering operator<=>(const Fraction& a, const Fraction& b) {
  const Integer common = greatest_common_divisor(a.denominator_, b.denominator_);
  return checked_multiply(a.numerator_, b.denominator_ / common) <=>
         checked_multiply(b.numerator_, a.denominator_ / common);
}

}  // namespace ropewalk::plan
