#include "verify/report/figures.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace ingot::verify {
namespace {

TEST(Figures, ANearlyPerfectCosineNeverReadsAsOne) {
  EXPECT_EQ(cosine_text(1), "1");
  EXPECT_EQ(cosine_text(0.9999999), "0.999999900");
  EXPECT_EQ(cosine_text(0.99986), "0.999860");
  EXPECT_EQ(cosine_text(std::nan("")), "NaN");
}

TEST(Figures, AFewOfManyNeverReadAsNone) {
  EXPECT_EQ(share_text(0, 1000), "0");
  EXPECT_EQ(share_text(1, 1'000'000'000), "<0.001%");
  EXPECT_EQ(share_text(1, 100), "1.000%");
  EXPECT_EQ(share_text(0, 0), "0");
}

TEST(Figures, NoErrorIsExact) {
  EXPECT_EQ(decibel_text(std::numeric_limits<double>::infinity()), "exact");
  EXPECT_EQ(decibel_text(20.128), "20.13");
}

TEST(Figures, BytesAndCountsHaveUnitsAndCommas) {
  EXPECT_EQ(bytes_text(999), "999 B");
  EXPECT_EQ(bytes_text(688'574'839'360), "689 GB");
  EXPECT_EQ(bytes_text(999'600), "1.00 MB");
  EXPECT_EQ(count_text(1'234'567), "1,234,567");
}

TEST(Figures, CountsAreNeverInScientificNotation) {
  EXPECT_EQ(short_text(56'900), "56,900");
  EXPECT_EQ(short_text(-1'234'567), "-1,234,567");
  EXPECT_EQ(exact_text(56'900), "56900");
  EXPECT_EQ(exact_text(999'999.5), "1,000,000");
  for (double power = 1; power < 1e18; power *= 10) {
    for (const double value : {power - 1, power - 0.5, power - 0.4, power, 5.69 * power}) {
      EXPECT_EQ(short_text(value).find('e'), std::string::npos) << short_text(value);
      EXPECT_EQ(exact_text(value).find('e'), std::string::npos) << exact_text(value);
    }
  }
}

TEST(PrintableText, KeepsCharactersAndReplacesWhatIsNone) {
  EXPECT_EQ(printable_text("a\n\tß山😀"), "a\n\tß山😀");
  EXPECT_EQ(printable_text("cut \xe5\xba"), "cut \xef\xbf\xbd\xef\xbf\xbd");
  EXPECT_EQ(printable_text("\x1b[2J\xff"), "\xef\xbf\xbd[2J\xef\xbf\xbd");
  EXPECT_EQ(printable_text("\xc2\x9b"), "\xef\xbf\xbd");  // a control character of C1
  EXPECT_EQ(printable_text("\xed\xa0\x80"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");  // half a pair
}

}  // namespace
}  // namespace ingot::verify
