#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "inference/cache/kv_cache.h"
#include "tests/support/expect_error.h"

namespace ingot::inference {
namespace {

using ingot::testing::expect_error;
using Layers = std::vector<std::vector<CacheStream>>;

// Latent, its rope key and an index key of the released models.
std::vector<CacheStream> latent_layer(KvFormat format, std::size_t group) {
  return {{.width = 512, .format = format, .group = group},
          {.width = 64, .format = format == KvFormat::kF32 ? format : KvFormat::kBf16}};
}

TEST(KvCache, CostsWhatTheModelReferenceSays) {
  EXPECT_EQ(KvCache::bytes_per_token({latent_layer(KvFormat::kBf16, 0)}), 1152U);
  EXPECT_EQ(KvCache::bytes_per_token({latent_layer(KvFormat::kFp8, 128)}), 656U);
  EXPECT_EQ(KvCache::bytes_per_token({latent_layer(KvFormat::kInt8, 0)}), 644U);
  EXPECT_EQ(KvCache::bytes_per_token({latent_layer(KvFormat::kF32, 0)}), 2304U);
  EXPECT_EQ(KvCache::bytes_per_token(Layers(61, latent_layer(KvFormat::kFp8, 128))), 40016U);
  EXPECT_EQ(KvCache::bytes_per_token({{{.width = 128, .format = KvFormat::kFp8, .group = 128}}}),
            132U);
  // A last group may be shorter.
  EXPECT_EQ(KvCache::bytes_per_token({{{.width = 200, .format = KvFormat::kFp8, .group = 128}}}),
            208U);
}

TEST(KvCache, KnowsItsFormatsByName) {
  std::set<std::string_view> names;
  for (const KvFormat format : kv_formats()) {
    names.insert(kv_format_name(format));
    EXPECT_EQ(find_kv_format(kv_format_name(format)), format);
  }
  EXPECT_THAT(names, ::testing::ElementsAre("bf16", "f32", "fp8", "int8"));
  EXPECT_FALSE(find_kv_format("fp4").has_value());
}

class KvCachePages : public ::testing::Test {
 protected:
  // Two streams to a token, room for four pages of tokens.
  KvCache cache_{{{{.width = 8}}, {{.width = 4, .format = KvFormat::kBf16}}}, 200};

  float value_at(SequenceId id, std::size_t position) const {
    std::vector<float> out(8);
    const auto at = static_cast<std::uint32_t>(position);
    cache_.gather(id, 0, 0, std::span(&at, 1), out);
    return out[7];
  }
  void fill(SequenceId id, std::size_t first, std::size_t n, float value) {
    for (std::size_t t = first; t < first + n; ++t)
      cache_.write(id, 0, 0, t, std::vector<float>(8, value + static_cast<float>(t)));
  }
};

TEST_F(KvCachePages, AreTakenWholeAndGivenBack) {
  const SequenceId id = cache_.add();
  EXPECT_EQ(cache_.pages_used(), 0U);
  EXPECT_EQ(cache_.pages_free(), 8U) << "200 tokens are four pages of each of two streams";
  cache_.reserve(id, 65);
  EXPECT_EQ(cache_.length(id), 65U);
  EXPECT_EQ(cache_.pages_used(), 4U);
  cache_.reserve(id, 128);
  EXPECT_EQ(cache_.pages_used(), 4U) << "there was room in the second page";
  cache_.reserve(id, 10);
  EXPECT_EQ(cache_.length(id), 128U) << "reserving forgets nothing";
  cache_.truncate(id, 64);
  EXPECT_EQ(cache_.length(id), 64U);
  EXPECT_EQ(cache_.pages_used(), 2U);
  cache_.truncate(id, 64);
  cache_.truncate(id, 1000);
  EXPECT_EQ(cache_.length(id), 64U);
  cache_.truncate(id, 0);
  EXPECT_EQ(cache_.pages_used(), 0U);
  EXPECT_EQ(cache_.pages_free(), 8U);
}

TEST_F(KvCachePages, KeepTheirValuesWhenOthersComeAndGo) {
  const SequenceId a = cache_.add();
  const SequenceId b = cache_.add();
  cache_.reserve(a, 64);
  fill(a, 0, 64, 1000);
  cache_.reserve(b, 128);
  fill(b, 0, 128, 2000);
  cache_.reserve(a, 100);
  fill(a, 64, 36, 1000);
  cache_.free(b);
  const SequenceId c = cache_.add();
  cache_.reserve(c, 128);
  fill(c, 0, 128, 3000);
  for (const std::size_t t : {0U, 63U, 64U, 99U}) {
    EXPECT_EQ(value_at(a, t), 1000 + static_cast<float>(t));
    EXPECT_EQ(value_at(c, t), 3000 + static_cast<float>(t));
  }
  // What was kept by a truncation is still there, and what follows can be written anew.
  cache_.truncate(a, 70);
  cache_.reserve(a, 80);
  fill(a, 70, 10, 5000);
  EXPECT_EQ(value_at(a, 69), 1069);
  EXPECT_EQ(value_at(a, 70), 5070);
}

TEST_F(KvCachePages, GiveNumbersOfLivingSequencesOnce) {
  const SequenceId a = cache_.add();
  const SequenceId b = cache_.add();
  EXPECT_NE(a, b);
  cache_.free(a);
  const SequenceId c = cache_.add();
  EXPECT_NE(c, b);
  EXPECT_EQ(cache_.length(c), 0U);
  EXPECT_NE(cache_.add(), c);
}

TEST_F(KvCachePages, AreRefusedWithFiguresAndUnchanged) {
  const SequenceId a = cache_.add();
  const SequenceId b = cache_.add();
  cache_.reserve(a, 130);
  cache_.reserve(b, 1);
  fill(b, 0, 1, 7);
  // 40 bytes to a token: 8 x 4 and 4 x 2.
  expect_error(ErrorCode::kLimit,
               {"no room for 100 tokens", "64 more", "256 of its 256 tokens", "40 bytes each"},
               [&] { cache_.reserve(b, 100); });
  EXPECT_EQ(cache_.length(b), 1U);
  EXPECT_EQ(cache_.pages_used(), 8U);
  EXPECT_EQ(value_at(b, 0), 7);
  cache_.truncate(a, 128);
  cache_.reserve(b, 100);
  EXPECT_EQ(cache_.length(b), 100U);
  EXPECT_EQ(value_at(b, 0), 7);
  expect_error(ErrorCode::kLimit, {"no room for 257 tokens"},
               [&] { cache_.reserve(cache_.add(), 257); });
}

TEST_F(KvCachePages, ForeignIdsAreABug) {
  const SequenceId a = cache_.add();
  cache_.reserve(a, 10);
  const std::vector<float> values(8);
  expect_error(ErrorCode::kInternal, {}, [&] { cache_.write(a, 0, 0, 10, values); });
  expect_error(ErrorCode::kInternal, {}, [&] { cache_.write(a, 0, 1, 0, values); });
  expect_error(ErrorCode::kInternal, {}, [&] { cache_.write(a, 2, 0, 0, values); });
  expect_error(ErrorCode::kInternal, {}, [&] { cache_.write(a + 1, 0, 0, 0, values); });
  expect_error(ErrorCode::kInternal, {}, [&] { cache_.write(a, 0, 0, 0, {values.data(), 7}); });
  cache_.free(a);
  expect_error(ErrorCode::kInternal, {}, [&] { static_cast<void>(cache_.length(a)); });
}

TEST(KvCache, MayBeEmptyForSomeStreams) {
  KvCache cache({}, 0);
  const SequenceId id = cache.add();
  cache.reserve(id, 0);
  EXPECT_EQ(cache.n_layers(), 0U);
  expect_error(ErrorCode::kLimit, {}, [&] { cache.reserve(id, 1); });
}

}  // namespace
}  // namespace ingot::inference
