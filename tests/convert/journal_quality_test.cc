#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "convert/job/journal.h"
#include "tests/support/temp_dir.h"

// What quantized tensors leave in the journal, to the last bit.

namespace ingot::convert {
namespace {

using ingot::testing::TempDir;

TensorResult written_and_read(const TensorResult& record) {
  const TempDir directory;
  Journal::create(directory / "j", formats::Json{{"plan", "p"}}).add_results({{3, record}});
  return Journal::read(directory / "j")->items.at(3);
}

TEST(JournalQuality, SumsComeBackBitForBit) {
  TensorResult record{.source = {{1, 2}}, .output = {{{3, 4}}, {{5, 6}, {7, 8}}}};
  record.quality = {.elements = 12'345'678'901,
                    .blocks = 96'450'616,
                    .exact_blocks = 17,
                    .saturated = 3,
                    .zeroed = 99,
                    .error2 = 0.1 + 0.2,
                    .reference2 = std::nextafter(1e300, 2e300),
                    .product = -1.0 / 3,
                    .max_error = std::numeric_limits<double>::denorm_min()};
  EXPECT_EQ(written_and_read(record).quality, record.quality);
}

TEST(JournalQuality, PeakOfAGroupRoundTripsExactly) {
  for (const float amax : {0.0F, 0.1F, 0x1p-149F, 0x1.fffffep127F, 1.0F / 3}) {
    TensorResult record{.source = {{1, 2}}, .output = {{{3, 4}}}};
    record.amax = amax;
    EXPECT_EQ(written_and_read(record).amax, amax);
  }
}

TEST(JournalQuality, WhatIsNotThereStaysAway) {
  const TensorResult record = written_and_read({.source = {{1, 2}}, .output = {{{3, 4}}}});
  EXPECT_FALSE(record.amax);
  EXPECT_FALSE(record.quality);
  EXPECT_FALSE(record.inexact_global);
  TensorResult inexact{.source = {{1, 2}}, .output = {{{3, 4}}}};
  inexact.inexact_global = true;
  EXPECT_TRUE(written_and_read(inexact).inexact_global);
}

}  // namespace
}  // namespace ingot::convert
