#include "convert/job/journal.h"

#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>

#include "formats/json/json.h"
#include "tests/support/temp_dir.h"

namespace ingot::convert {
namespace {

using formats::Json;
using ingot::testing::TempDir;

std::map<std::uint32_t, TensorResult> item(std::uint32_t id) {
  return {{id, {.source = {{id, 1}, {id, 2}}, .output = {{{id, 3}}}}}};
}

TEST(Journal, ReadsBackWhatWasWritten) {
  const TempDir directory;
  Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
  journal.add_results(item(7));
  journal.add_results(item(2));
  journal.add_consumed("model.safetensors");
  const auto contents = Journal::read(directory / "j");
  ASSERT_TRUE(contents.has_value());
  EXPECT_EQ(contents->identity, (Json{{"plan", "p"}}));
  ASSERT_EQ(contents->items.size(), 2U);
  EXPECT_EQ(contents->items.at(7).source, item(7).at(7).source);
  EXPECT_EQ(contents->items.at(2).output, item(2).at(2).output);
  EXPECT_EQ(contents->consumed, std::set<std::string>{"model.safetensors"});
  EXPECT_FALSE(contents->publishing);
}

TEST(Journal, RemembersWhetherPublishingReplacesAnOlderCheckpoint) {
  for (const bool replacing : {false, true}) {
    for (const bool inspected : {false, true}) {
      const TempDir directory;
      Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
      journal.add_publishing(replacing, inspected);
      const auto contents = Journal::read(directory / "j");
      EXPECT_TRUE(contents->publishing);
      EXPECT_EQ(contents->replacing, replacing);
      EXPECT_EQ(contents->inspected, inspected);
    }
  }
}

TEST(Journal, TornTailsAreCutAndContinued) {
  const TempDir directory;
  {
    Journal journal = Journal::create(directory / "whole", Json{{"plan", "p"}});
    journal.add_results(item(1));
    journal.add_results(item(2));
  }
  std::ifstream stream(directory / "whole");
  const std::string whole((std::istreambuf_iterator<char>(stream)), {});
  for (std::size_t length = 0; length <= whole.size(); ++length) {
    std::ofstream(directory / "torn") << whole.substr(0, length);
    const auto lines = static_cast<std::size_t>(
        std::count(whole.begin(), whole.begin() + static_cast<long>(length), '\n'));
    const auto contents = Journal::read(directory / "torn");
    ASSERT_EQ(contents.has_value(), lines >= 1) << length;
    if (!contents) continue;
    EXPECT_EQ(contents->items.size(), lines - 1);
    Journal::append_to(directory / "torn", *contents).add_results(item(9));
    EXPECT_EQ(Journal::read(directory / "torn")->items.size(), lines) << length;
  }
}

TEST(Journal, AGarbledLineEndsTheReadablePart) {
  const TempDir directory;
  {
    Journal journal = Journal::create(directory / "j", Json{{"plan", "p"}});
    journal.add_results(item(1));
    journal.add_results(item(2));
  }
  std::fstream file(directory / "j", std::ios::in | std::ios::out | std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  const std::size_t second = text.find('\n') + 1;
  file.clear();
  file.seekp(static_cast<std::streamoff>(second + 60));
  file.put('#');
  file.close();
  EXPECT_TRUE(Journal::read(directory / "j")->items.empty());
}

TEST(Journal, NoFileIsNoJournal) {
  const TempDir directory;
  EXPECT_FALSE(Journal::read(directory / "missing").has_value());
}

// What quantized tensors leave, to the last bit.
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
