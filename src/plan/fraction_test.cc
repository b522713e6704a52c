#include "plan/fraction.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace ropewalk::plan {
namespace {

TEST(Fraction, StaysInLowestTermsWithAPositiveDenominator) {
  EXPECT_EQ(Fraction(6, -4), Fraction(-3, 2));
  EXPECT_EQ(Fraction(0, 7).to_string(), "0");
  EXPECT_EQ(Fraction(1200, 7).to_string(), "1200/7");
  EXPECT_EQ(Fraction(-8, 2).to_string(), "-4");
}

TEST(Fraction, CalculatesExactly) {
  Fraction sum = 0;
  for (int i = 1; i <= 40; ++i) sum += Fraction(1, i) - Fraction(1, i + 1);
  EXPECT_EQ(sum, Fraction(40, 41));
  EXPECT_EQ(Fraction(3, 7) * Fraction(14, 9), Fraction(2, 3));
  EXPECT_EQ(Fraction(3, 7) / Fraction(-9, 14), Fraction(-2, 3));
  EXPECT_LT(Fraction(1, 3), Fraction(34, 100));
  EXPECT_EQ(Fraction(-7, 2).floor(), -4);
  EXPECT_EQ(Fraction(7, 2).floor(), 3);
}

TEST(Fraction, ReadsDecimalsAsTheyAreWritten) {
  EXPECT_EQ(Fraction::from_decimal(18.43, 6), Fraction(1843, 100));
  EXPECT_EQ(Fraction::from_decimal(0.1, 6), Fraction(1, 10));
  EXPECT_THROW(Fraction::from_decimal(1e300, 6), Error);
}

TEST(Fraction, RefusesWhatIsNoFraction) {
  for (const char* text : {"", "-", "1/", "/2", "1/0", "1.5", "0x3", "1/2/3", " 1"}) {
    EXPECT_THROW(Fraction::parse(text), Error) << text;
  }
  EXPECT_EQ(Fraction::parse("-10/4"), Fraction(-5, 2));
}

TEST(Fraction, SaysSoWhenNumbersGrowTooLarge) {
  Fraction large(Fraction::Integer{1} << 100, 1);
  EXPECT_THROW(large *= large, Error);
}

}  // namespace
}  // namespace ropewalk::plan
