// Values that are read have the meaning of the formats, written here from the model reference: by
// trying every code.

#include "inference/cache/kv_cache.h"

#include "tests/support/cache_cases.h"
#include "tests/support/test.h"

namespace ingot::inference {

using ingot::testing::cache_case;
using ingot::testing::expect_error;
using ingot::testing::TempDir;
using Layers = std::vector<std::vector<CacheStream>>;
using Values = std::vector<float>;

namespace {

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
  EXPECT_THAT(names, ::testing::ElementsAre("bf16", "f32", "fp8", "fp8-static", "int8"));
  EXPECT_FALSE(find_kv_format("fp4").has_value());
}

TEST(KvCache, StaticScalesRoundAndSaturate) {
  const CacheStream stream{
      .width = 4, .format = KvFormat::kFp8Static, .group = 2, .fixed = {0.03125F, 1}};
  EXPECT_EQ(KvCache::bytes_per_token({{stream}}), 4U);
  KvCache cache({{stream}}, 1);
  const SequenceId id = cache.add();
  cache.reserve(id, 1);
  cache.write(id, 0, 0, 0, std::vector{3.0F, 20.0F, 500.0F, -3.25F});
  std::vector<float> out(4);
  const std::uint32_t first = 0;
  cache.gather(id, 0, 0, std::span(&first, 1), out);
  // 3 / 0.03125 is the code of 96; 640 and 500 are beyond 448; a step at 3.25 is 0.25.
  EXPECT_EQ(out, (std::vector{3.0F, 14.0F, 448.0F, -3.25F}));
}

TEST(KvCache, StaticFormatNeedsAScalePerGroup) {
  const CacheStream stream{.width = 4, .format = KvFormat::kFp8Static, .group = 2, .fixed = {1}};
  expect_error(ErrorCode::kUnsupported, {"fp8-static"}, [&] { KvCache({{stream}}, 64); });
}

/// The scales of a case as a model's cache gets them.
std::vector<StaticScales> static_scales_of(const char* name) {
  const TempDir directory;
  cache_case(name).write(directory / "model");
  return read_static_scales(formats::Checkpoint::open(directory / "model"));
}

TEST(StaticScales, AreReadByLayer) {
  const std::vector<StaticScales> scales = static_scales_of("modelopt-fp8");
  ASSERT_EQ(scales.size(), 2U);
  EXPECT_EQ(scales[0].keys, std::vector{0.03125F});
  EXPECT_EQ(scales[1].values, std::vector{0.75F / 448});
}

TEST(StaticScales, OfHeadsAndMtpLayersAreRead) {
  EXPECT_EQ(static_scales_of("ct-head")[1].keys.size(), 2U);
  EXPECT_EQ(static_scales_of("mla-modelopt").at(2).keys, std::vector{0.75F / 448});
}

TEST(StaticScales, ThatTheConfigOnlyDeclaresAreOne) {
  EXPECT_EQ(static_scales_of("modelopt-cast")[1].keys, std::vector{1.0F});
}

TEST(StaticScales, ThatALayerLacksAreRefused) {
  expect_error(ErrorCode::kMissingTensor, {"model.layers.1.self_attn", "--kv-scales"},
               [] { static_scales_of("bad-missing-layer"); });
  expect_error(ErrorCode::kBadScale, {"is 0"}, [] { static_scales_of("bad-zero"); });
  expect_error(ErrorCode::kUnsupported, {"bias"}, [] { static_scales_of("modelopt-affine"); });
}

class KvCachePages : public ::testing::Test {
 protected:
  // Two streams to a token, room for four pages of tokens.
  KvCache cache_{{{{.width = 8}}, {{.width = 4, .format = KvFormat::kBf16}}}, 200};

  /// How many pages another sequence can have.
  std::size_t pages_free() {
    const SequenceId other = cache_.add();
    std::size_t n = 0;
    try {
      for (;; ++n) cache_.reserve(other, (n + 1) * KvCache::kPageTokens);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kLimit);
    }
    cache_.free(other);
    return n;
  }
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
  EXPECT_EQ(pages_free(), 4U) << "200 tokens are four pages";
  cache_.reserve(id, 65);
  EXPECT_EQ(cache_.length(id), 65U);
  EXPECT_EQ(pages_free(), 2U);
  cache_.reserve(id, 128);
  EXPECT_EQ(pages_free(), 2U) << "there was room in the second page";
  cache_.reserve(id, 10);
  EXPECT_EQ(cache_.length(id), 128U) << "reserving forgets nothing";
  cache_.truncate(id, 64);
  EXPECT_EQ(cache_.length(id), 64U);
  EXPECT_EQ(pages_free(), 3U);
  cache_.truncate(id, 64);
  cache_.truncate(id, 1000);
  EXPECT_EQ(cache_.length(id), 64U);
  cache_.truncate(id, 0);
  EXPECT_EQ(pages_free(), 4U);
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
  // Tokens kept by a truncation are still there, and those after them can be written again.
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

TEST(KvCacheStreams, VectorsOfSeveralTokensComeBack) {
  for (const std::size_t every : {3U, 4U, 48U, 64U, 100U, 128U}) {
    SCOPED_TRACE(every);
    KvCache cache({{{.width = 2}, {.width = 1, .every = every}}}, 1000);
    const SequenceId id = cache.add();
    cache.reserve(id, 900);
    const auto n = static_cast<std::uint32_t>(900 / every);
    std::vector<std::uint32_t> numbers(n);
    std::vector<float> written(n), read(n);
    for (std::uint32_t e = 0; e < n; ++e) {
      numbers[e] = e;
      written[e] = static_cast<float>(e) + 0.5F;
      cache.write(id, 0, 1, e, {&written[e], 1});
    }
    cache.gather(id, 0, 1, numbers, read);
    EXPECT_EQ(read, written);
    expect_error(ErrorCode::kInternal, {"position"}, [&] {
      cache.write(id, 0, 1, n, {written.data(), 1});
    });
  }
}

TEST(KvCacheStreams, VectorsOfFourTokensTakeAQuarter) {
  EXPECT_EQ(KvCache::bytes_per_token({{{.width = 32}}}), 128U);
  EXPECT_EQ(KvCache::bytes_per_token({{{.width = 32, .every = 4}}}), 32U);
  EXPECT_EQ(KvCache::bytes_per_token({{{.width = 32, .is_state = true}}}), 0U);
  EXPECT_EQ(KvCache::bytes_per_sequence({{{.width = 32}}, {{.width = 5, .is_state = true}}}), 20U);
}

TEST(KvCacheStates, BeginAsZerosAndDoNotGoBack) {
  KvCache cache(
      {{{.width = 2}}, {{.width = 3, .is_state = true}}, {{.width = 1, .is_state = true}}}, 1000);
  const SequenceId a = cache.add();
  const SequenceId b = cache.add();
  cache.reserve(a, 100);
  cache.reserve(b, 100);
  for (const SequenceId id : {a, b}) {
    const auto state = cache.state(id, 1, 0, 10);
    ASSERT_EQ(state.size(), 3U);
    EXPECT_EQ(state[2], 0);
    state[2] = 7 + static_cast<float>(id);
    EXPECT_EQ(cache.state(id, 2, 0, 10)[0], 0);
  }
  EXPECT_EQ(cache.state(a, 1, 10, 11)[2], 7);
  EXPECT_EQ(cache.state(b, 1, 10, 11)[2], 8);
  expect_error(ErrorCode::kUnsupported,
               {"state of layer 1", "has seen 11 tokens", "go on from 10", "begin the sequence"},
               [&] { (void)cache.state(a, 1, 10, 11); });
  EXPECT_EQ(cache.state(a, 1, 0, 1)[2], 0) << "it begins again";
  cache.free(b);
  const SequenceId next = cache.add();
  cache.reserve(next, 5);
  EXPECT_EQ(cache.state(next, 1, 0, 5)[2], 0);
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
  EXPECT_EQ(pages_free(), 0U);
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

double e4m3_value(unsigned code) {
  const int exponent = static_cast<int>(code >> 3 & 15U);
  const int mantissa = static_cast<int>(code & 7U);
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80U) != 0 ? -magnitude : magnitude;
}

// Nearest of all codes, ties to the even one.
float nearest_e4m3(float x) {
  unsigned best = 0;
  double least = std::numeric_limits<double>::infinity();
  for (unsigned code = 0; code < 0x7F; ++code) {
    const double distance = std::abs(e4m3_value(code) - std::abs(double{x}));
    if (distance < least || (distance == least && code % 2 == 0)) {
      least = distance;
      best = code;
    }
  }
  const auto magnitude = static_cast<float>(e4m3_value(best));
  return std::signbit(x) ? -magnitude : magnitude;
}

float largest_of(std::span<const float> values) {
  float largest = 0;
  for (const float value : values) largest = std::max(largest, std::abs(value));
  return largest;
}

Values expected_fp8(const Values& values, std::size_t group, bool power_of_two) {
  Values expected;
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    const std::size_t n = std::min(group, values.size() - begin);
    float scale =
        std::max(largest_of(std::span(values).subspan(begin, n)), 1e-4F) * (1.0F / 448.0F);
    if (power_of_two) {
      float power = 0x1p-60F;
      while (power < scale) power *= 2;
      scale = power;
    }
    for (std::size_t i = begin; i < begin + n; ++i) {
      const float scaled = std::clamp(values[i] / scale, -448.0F, 448.0F);
      expected.push_back(nearest_e4m3(scaled) * scale);
    }
  }
  return expected;
}

Values expected_int8(const Values& values, std::size_t group) {
  Values expected;
  for (std::size_t begin = 0; begin < values.size(); begin += group) {
    const std::size_t n = std::min(group, values.size() - begin);
    const float largest = largest_of(std::span(values).subspan(begin, n));
    const float scale = largest == 0 ? 1.0F : largest / 127.0F;
    for (std::size_t i = begin; i < begin + n; ++i) {
      // Through an integer: there is no -0.
      const int code = static_cast<int>(std::nearbyint(values[i] / scale));
      expected.push_back(static_cast<float>(std::clamp(code, -127, 127)) * scale);
    }
  }
  return expected;
}

Values expected_bf16(const Values& values) {
  Values expected;
  for (const float value : values) {
    // The two neighbours with sixteen bits, and the nearer one.
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const auto down = std::bit_cast<float>(bits & 0xFFFF0000U);
    const auto up = std::bit_cast<float>((bits & 0xFFFF0000U) + 0x10000U);
    const double to_down = std::abs(double{value} - double{down});
    const double to_up = std::abs(double{value} - double{up});
    const bool is_down_even = (bits & 0x10000U) == 0;
    expected.push_back(to_down < to_up || (to_down == to_up && is_down_even) ? down : up);
  }
  return expected;
}

Values expected(const CacheStream& stream, const Values& values) {
  const std::size_t group = stream.group == 0 ? stream.width : stream.group;
  switch (stream.format) {
    case KvFormat::kBf16:
      return expected_bf16(values);
    case KvFormat::kFp8:
      return expected_fp8(values, group, stream.power_of_two);
    case KvFormat::kInt8:
      return expected_int8(values, group);
    case KvFormat::kFp8Static:  // StaticScalesRoundAndSaturate
    case KvFormat::kF32:
      break;
  }
  return values;
}

Values random_values(std::size_t n, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::uniform_int_distribution<int> exponent(-6, 6);
  const float scale = std::ldexp(1.0F, exponent(random));
  Values values(n);
  for (float& value : values) value = normal(random) * scale;
  return values;
}

const std::array kStreams = {
    CacheStream{.width = 200, .format = KvFormat::kF32},
    CacheStream{.width = 200, .format = KvFormat::kBf16},
    CacheStream{.width = 512, .format = KvFormat::kFp8, .group = 128},
    CacheStream{.width = 200, .format = KvFormat::kFp8, .group = 128, .power_of_two = true},
    CacheStream{.width = 16, .format = KvFormat::kFp8, .group = 128},
    CacheStream{.width = 200, .format = KvFormat::kInt8},
    CacheStream{.width = 96, .format = KvFormat::kInt8, .group = 32},
};

std::vector<std::uint32_t> bits_of(std::span<const float> values) {
  std::vector<std::uint32_t> bits;
  for (const float value : values) bits.push_back(std::bit_cast<std::uint32_t>(value));
  return bits;
}

class EveryStream : public ::testing::TestWithParam<CacheStream> {};
INSTANTIATE_TEST_SUITE_P(Formats, EveryStream, ::testing::ValuesIn(kStreams), [](const auto& row) {
  return std::string(kv_format_name(row.param.format)) + "_" + std::to_string(row.param.width) +
         "_" + std::to_string(row.param.group) + (row.param.power_of_two ? "_ue8m0" : "");
});

TEST_P(EveryStream, ReadsBackTheRoundedValuesBitForBit) {
  const CacheStream& stream = GetParam();
  // Another stream and layer around it, so that places matter.
  const CacheStream other{.width = 3, .format = KvFormat::kBf16};
  KvCache cache({{other}, {other, stream, other}}, 200);
  cache.add();
  const SequenceId id = cache.add();
  constexpr std::size_t kTokens = 150;
  cache.reserve(id, kTokens);
  Values all;
  for (std::size_t t = 0; t < kTokens; ++t) {
    Values values = random_values(stream.width, static_cast<std::uint32_t>(t));
    if (t == 70) std::fill(values.begin(), values.end(), 0.0F);
    if (t == 71) values[0] = -0.0F;
    // Written again, the last one counts.
    cache.write(id, 1, 1, t, random_values(stream.width, 9999));
    cache.write(id, 1, 1, t, values);
    cache.write(id, 1, 0, t, Values(3, 1.0F));
    cache.write(id, 1, 2, t, Values(3, 2.0F));
    const Values rounded = expected(stream, values);
    all.insert(all.end(), rounded.begin(), rounded.end());
  }
  Values scratch(KvCache::kPageTokens * stream.width);
  for (std::size_t page = 0; page * KvCache::kPageTokens < kTokens; ++page) {
    const std::size_t first = page * KvCache::kPageTokens;
    const std::size_t n = std::min(KvCache::kPageTokens, kTokens - first);
    const float* values = cache.page(id, 1, 1, page, n, scratch);
    if (stream.format == KvFormat::kF32) {
      EXPECT_NE(values, scratch.data()) << "FP32 is not copied";
    }
    EXPECT_EQ(bits_of({values, n * stream.width}),
              bits_of(std::span(all).subspan(first * stream.width, n * stream.width)))
        << "page " << page;
  }
  EXPECT_EQ(cache.page(id, 1, 0, 0, 1, scratch)[2], 1.0F);
  EXPECT_EQ(cache.page(id, 1, 2, 2, 22, scratch)[65], 2.0F);
}

TEST_P(EveryStream, GathersTheValuesOfThePages) {
  const CacheStream& stream = GetParam();
  KvCache cache({{stream}}, 200);
  const SequenceId id = cache.add();
  cache.reserve(id, 200);
  for (std::size_t t = 0; t < 200; ++t)
    cache.write(id, 0, 0, t, random_values(stream.width, static_cast<std::uint32_t>(t)));
  const std::vector<std::uint32_t> positions = {199, 0, 64, 63, 63, 128, 5};
  Values gathered(positions.size() * stream.width);
  cache.gather(id, 0, 0, positions, gathered);
  Values scratch(KvCache::kPageTokens * stream.width);
  for (std::size_t i = 0; i < positions.size(); ++i) {
    const std::size_t page = positions[i] / KvCache::kPageTokens;
    const std::size_t n = std::min(KvCache::kPageTokens, 200 - page * KvCache::kPageTokens);
    const float* values = cache.page(id, 0, 0, page, n, scratch);
    const std::size_t row = positions[i] % KvCache::kPageTokens;
    EXPECT_EQ(bits_of({values + row * stream.width, stream.width}),
              bits_of(std::span(gathered).subspan(i * stream.width, stream.width)));
  }
}

TEST(KvCache, ThreadsMayUseDifferentSequencesAndLayers) {
  const CacheStream stream{.width = 64, .format = KvFormat::kFp8, .group = 32};
  KvCache cache({{stream}, {stream}}, 256);
  const SequenceId first = cache.add();
  const SequenceId second = cache.add();
  cache.reserve(first, 100);
  cache.reserve(second, 100);
  const auto work = [&](SequenceId id, std::size_t layer) {
    Values scratch(KvCache::kPageTokens * stream.width);
    for (std::size_t t = 0; t < 100; ++t) {
      const Values values = random_values(stream.width, id * 1000 + static_cast<std::uint32_t>(t));
      cache.write(id, layer, 0, t, values);
      const std::size_t page = t / KvCache::kPageTokens;
      const std::size_t row = t % KvCache::kPageTokens;
      const float* read = cache.page(id, layer, 0, page, row + 1, scratch);
      EXPECT_EQ(bits_of({read + row * stream.width, stream.width}),
                bits_of(expected(stream, values)));
    }
  };
  {
    const std::jthread a([&] { work(first, 0); });
    const std::jthread b([&] { work(first, 1); });
    const std::jthread c([&] { work(second, 0); });
  }
}

}  // namespace

}  // namespace ingot::inference
