#include "engines/live/live_answer.h"

#include <cstring>

#include "engines/live/live_forms.h"
#include "tests/support/test.h"

namespace ingot::engines {
namespace {

using formats::DType;
using formats::SchemeId;

std::string sum_of(std::string_view bytes) {
  SumOfWords sum(bytes.size());
  sum.update(bytes);
  return sum.finish_hex();
}

// Values of a program that restates the kernel in NumPy.
TEST(SumOfWords, EqualsKnownValues) {
  EXPECT_EQ(sum_of(""), "0000000000000000");
  EXPECT_EQ(sum_of(std::string(1, '\0')), "3d93a6540b54ef2a");
  EXPECT_EQ(sum_of(std::string(4, '\0')), "3d93a6540b54ef2a");
  EXPECT_EQ(sum_of("abc"), "d8af575884d43b13");
  EXPECT_EQ(sum_of(std::string(32768, '\0')), "d08a74f374a53cfa");
  std::string ramp(100003, '\0');
  for (std::size_t i = 0; i < ramp.size(); ++i) ramp[i] = static_cast<char>(i * 7 % 256);
  EXPECT_EQ(sum_of(ramp), "f82d54c7de5a9933");
}

// Values of SGLang's kernel on an H200 (scripts/engines/README.md): word i is i x 2654435761 + 12345.
TEST(SumOfWords, EqualsTheKernelOnACard) {
  std::string bytes(1048580, '\0');
  for (std::size_t i = 0; i < bytes.size() / 4; ++i) {
    const auto word = static_cast<std::uint32_t>(i * 2654435761U + 12345U);
    std::memcpy(&bytes[i * 4], &word, sizeof word);
  }
  const auto of_first = [&](std::size_t n) { return sum_of(std::string_view(bytes).substr(0, n)); };
  EXPECT_EQ(of_first(5), "ca2f074e6ed619f2");
  EXPECT_EQ(of_first(70), "b7270b6d17e2802a");
  EXPECT_EQ(of_first(32769), "743d2151de142042");
  EXPECT_EQ(of_first(65537), "92525eb01001e822");
  EXPECT_EQ(of_first(100003), "8c75e4f290c0918f");
  EXPECT_EQ(of_first(1048579), "fbd96f318a1478b3");
}

// A form may have fewer bytes than the parameter in the files.
TEST(LiveDigest, SumsTakeTheBytesThatAreGiven) {
  const std::string word = "word";
  LiveDigest digest(LiveHash::kSum, word.size(), DType::kF32, {7});
  digest.update(std::as_bytes(std::span(word)));
  EXPECT_EQ(digest.finish().front(), sum_of(word));
}

TEST(SumOfWords, PiecesOfAnySizeGiveTheSameSum) {
  std::string bytes(70001, '\0');
  for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i % 251);
  for (const std::size_t piece : {1U, 3U, 4U, 4097U, 69999U}) {
    SumOfWords sum(bytes.size());
    for (std::size_t at = 0; at < bytes.size(); at += piece)
      sum.update(std::string_view(bytes).substr(at, piece));
    EXPECT_EQ(sum.finish_hex(), sum_of(bytes)) << piece;
  }
}

TEST(LiveRequest, OnlyAsksForChecksums) {
  EXPECT_EQ(kLiveRequest, R"({"action": "checksum"})");
}

TEST(LiveForms, EveryRowHasAFormOrAKernel) {
  for (const Engine engine : {Engine::kVllm, Engine::kSglang}) {
    for (const formats::SchemeFacts& facts : formats::schemes()) {
      for (const bool is_of_experts : {false, true}) {
        for (const char* part : {"weight", "weight_scale", "weight_global_scale", "bias"}) {
          for (const auto card :
               {std::optional<LiveCard>(), std::optional(LiveCard::kAmpere),
                std::optional(LiveCard::kHopper), std::optional(LiveCard::kBlackwell)}) {
            const LiveForms forms = live_forms(
                engine, {.scheme = facts.id, .is_of_experts = is_of_experts, .part = part}, card);
            EXPECT_TRUE(!forms.forms.empty() || !forms.kernel.empty())
                << facts.name << " " << part << " " << is_of_experts;
          }
        }
      }
    }
  }
}

// A parameter that no card packs can be said to differ; for any other one the kernel is named.
TEST(LiveForms, KernelsAreNamedUntilTheCardIsKnown) {
  const LiveWeight experts{
      .scheme = SchemeId::kFp8Block, .is_of_experts = true, .part = "w2_weight"};
  EXPECT_EQ(live_forms(Engine::kVllm, experts, LiveCard::kHopper).kernel, "");
  EXPECT_NE(live_forms(Engine::kVllm, experts, LiveCard::kAmpere).kernel, "");
  EXPECT_NE(live_forms(Engine::kVllm, experts, std::nullopt).kernel, "");
  const LiveWeight plain{.scheme = SchemeId::kBf16, .part = "weight"};
  EXPECT_EQ(live_forms(Engine::kVllm, plain, std::nullopt).kernel, "");
}

std::vector<std::byte> bytes_of(std::initializer_list<int> values) {
  std::vector<std::byte> bytes;
  for (const int value : values) bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

// The bytes of a form by each arithmetic.
std::vector<std::vector<std::byte>> all_made_in(LiveForm form, const LiveBytes& stored,
                                                const LiveBytes* other) {
  std::vector<std::vector<std::byte>> made;
  in_form(form, stored, other, [&](std::span<const std::byte> bytes) {
    made.emplace_back(bytes.begin(), bytes.end());
    return false;
  });
  return made;
}

// The bytes of a form that has one arithmetic.
std::optional<std::vector<std::byte>> made_in(LiveForm form, const LiveBytes& stored,
                                              const LiveBytes* other) {
  auto made = all_made_in(form, stored, other);
  EXPECT_LE(made.size(), 1U);
  return made.empty() ? std::nullopt : std::optional(made.front());
}

TEST(InForm, RowsAndColumnsArePutWhereEnginesPutThem) {
  const auto stored = bytes_of({1, 2, 3, 4, 5, 6, 7, 8});
  const LiveBytes matrix{.bytes = stored, .dtype = DType::kI8, .shape = {2, 4}};
  EXPECT_EQ(made_in(LiveForm::kTransposed, matrix, nullptr), bytes_of({1, 5, 2, 6, 3, 7, 4, 8}));
  const LiveBytes stack{.bytes = stored, .dtype = DType::kI8, .shape = {1, 4, 2}};
  EXPECT_EQ(made_in(LiveForm::kHalvesSwapped, stack, nullptr), bytes_of({5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_EQ(made_in(LiveForm::kRowsInterleaved, stack, nullptr),
            bytes_of({1, 2, 5, 6, 3, 4, 7, 8}));
  EXPECT_EQ(made_in(LiveForm::kTransposed, stack, nullptr), std::nullopt);
  EXPECT_EQ(made_in(LiveForm::kHalvesSwapped, matrix, nullptr), std::nullopt);
  EXPECT_EQ(made_in(LiveForm::kDecoded, matrix, nullptr), std::nullopt);
}

// Two blocks of a row: ones under scales of 1.75 and a bit, and of 0.5.
TEST(InForm, ScalesBecomePowersOfTwo) {
  const std::vector<std::byte> codes(130, std::byte{0x38});
  const std::array<float, 2> scales = {1.75341796875F, 0.5F};
  const LiveBytes of_codes{.bytes = codes, .dtype = DType::kF8E4M3, .shape = {1, 130}};
  const LiveBytes of_scales{
      .bytes = std::as_bytes(std::span(scales)), .dtype = DType::kF32, .shape = {1, 2}};
  const auto encoded = [&](LiveForm form, int first) {
    const auto made = made_in(form, of_codes, &of_scales).value();
    EXPECT_EQ(made[0], static_cast<std::byte>(first));
    EXPECT_EQ(made[127], made[0]);
    EXPECT_EQ(made[128], std::byte{0x78});  // 256
  };
  encoded(LiveForm::kPowersOfTwo, 0x76);    // 224.4
  encoded(LiveForm::kRoundedPowers, 0x7E);  // 1.75 in BF16, so 448
  const std::array<float, 2> powers = {0x1p-7F, 0x1p-9F};
  const auto expected = std::as_bytes(std::span(powers));
  EXPECT_EQ(made_in(LiveForm::kPowersOfTwo, of_scales, &of_codes),
            std::vector<std::byte>(expected.begin(), expected.end()));
  EXPECT_EQ(made_in(LiveForm::kPackedPowers, of_scales, &of_codes), bytes_of({120, 118, 0, 0}));
  EXPECT_EQ(made_in(LiveForm::kPackedRounded, of_scales, &of_codes), bytes_of({119, 118, 0, 0}));
  EXPECT_EQ(made_in(LiveForm::kPackedPowers, of_codes, &of_scales), std::nullopt);
  EXPECT_EQ(made_in(LiveForm::kDecodedPowers, of_scales, &of_codes), std::nullopt);
  EXPECT_EQ(made_in(LiveForm::kPowersOfTwo, of_scales, nullptr), std::nullopt);
}

TEST(InForm, TilesHold128RowsAnd4Columns) {
  constexpr std::size_t kRows = 130, kCols = 5, kTileRows = 2, kTileCols = 2;
  std::vector<std::byte> stored(kRows * kCols);
  for (std::size_t i = 0; i < stored.size(); ++i) stored[i] = static_cast<std::byte>(i % 251);
  std::vector<std::byte> expected;
  for (std::size_t tile = 0; tile < kTileRows * kTileCols; ++tile) {
    for (std::size_t row = 0; row < 32; ++row) {
      for (std::size_t i = 0; i < 16; ++i) {
        const std::size_t r = tile / kTileCols * 128 + i / 4 * 32 + row;
        const std::size_t c = tile % kTileCols * 4 + i % 4;
        expected.push_back(r < kRows && c < kCols ? stored[r * kCols + c] : std::byte{0});
      }
    }
  }
  const LiveBytes scales{.bytes = stored, .dtype = DType::kF8E4M3, .shape = {kRows, kCols}};
  EXPECT_EQ(made_in(LiveForm::kTiles, scales, nullptr), expected);
  // The matrices of a stack follow each other.
  const auto once = stored;
  stored.insert(stored.end(), once.begin(), once.end());
  const LiveBytes stack{.bytes = stored, .dtype = DType::kF8E4M3, .shape = {2, kRows, kCols}};
  const auto tiles = expected;
  expected.insert(expected.end(), tiles.begin(), tiles.end());
  EXPECT_EQ(made_in(LiveForm::kTiles, stack, nullptr), expected);
}

TEST(InForm, LargestReciprocalIsOneNumber) {
  const std::array<float, 3> values = {0.5F, 4.0F, 2.0F};
  const LiveBytes stored{
      .bytes = std::as_bytes(std::span(values)), .dtype = DType::kF32, .shape = {3}};
  const float quarter = 0.25F;
  const auto expected = std::as_bytes(std::span(&quarter, 1));
  EXPECT_EQ(made_in(LiveForm::kLargestReciprocal, stored, nullptr),
            std::vector<std::byte>(expected.begin(), expected.end()));
}

// Codes by NumPy. Both round to FP16 between the scales; a card casts the scale to FP16 before.
TEST(InForm, JoinedCodesComeUnderTheirLargestScale) {
  const auto stored = bytes_of({0x38, 0x7E, 0x48, 0x2F, 0x38, 0x7E, 0xC8, 0x00});
  const std::array<float, 2> own = {1.1e-6F, 5e-4F}, alike = {5e-4F, 5e-4F};
  const LiveBytes scales{
      .bytes = std::as_bytes(std::span(own)), .dtype = DType::kF32, .shape = {2}};
  const LiveBytes same{
      .bytes = std::as_bytes(std::span(alike)), .dtype = DType::kF32, .shape = {2}};
  const LiveBytes linear{.bytes = stored, .dtype = DType::kF8E4M3, .shape = {4, 2}, .rows = {2, 2}};
  EXPECT_EQ(all_made_in(LiveForm::kOneScale, linear, &scales),
            (std::vector{bytes_of({1, 4, 0x38, 0xC8, 0x37, 0, 0x7E, 0}),
                         bytes_of({1, 5, 0x38, 0xC8, 0x38, 1, 0x7E, 0})}));
  EXPECT_EQ(all_made_in(LiveForm::kOneScale, linear, &same).front(),
            made_in(LiveForm::kTransposed, linear, nullptr));
  EXPECT_TRUE(has_own_scales(linear, scales));
  EXPECT_FALSE(has_own_scales(linear, same));

  // An expert: gate and up, which stay rows by columns.
  const LiveBytes of_expert{.bytes = scales.bytes, .dtype = DType::kF32, .shape = {1, 2}};
  const LiveBytes stack{
      .bytes = stored, .dtype = DType::kF8E4M3, .shape = {1, 4, 2}, .rows = {2, 2}};
  EXPECT_EQ(all_made_in(LiveForm::kOneScale, stack, &of_expert).front(),
            bytes_of({1, 0x37, 4, 0, 0x38, 0x7E, 0xC8, 0}));
  EXPECT_EQ(all_made_in(LiveForm::kOneScaleSwapped, stack, &of_expert).front(),
            bytes_of({0x38, 0x7E, 0xC8, 0, 1, 0x37, 4, 0}));
  // Down of two experts: each has its own.
  const LiveBytes two{.bytes = stored, .dtype = DType::kF8E4M3, .shape = {2, 2, 2}, .rows = {2, 2}};
  EXPECT_FALSE(has_own_scales(two, scales));
  EXPECT_TRUE(all_made_in(LiveForm::kOneScale, linear, nullptr).empty());
}

TEST(InForm, ScalesOfTheJoinedBecomeOneOrOneForEachRow) {
  const std::array<float, 4> values = {0.5F, 4.0F, 2.0F, 1.0F};
  const LiveBytes stored{
      .bytes = std::as_bytes(std::span(values)), .dtype = DType::kF32, .shape = {4}};
  LiveBytes codes{.dtype = DType::kF8E4M3, .shape = {5, 1}, .rows = {1, 1, 1, 2}};
  const auto numbers = [](std::vector<float> list) {
    const auto bytes = std::as_bytes(std::span(list));
    return std::vector(bytes.begin(), bytes.end());
  };
  EXPECT_EQ(made_in(LiveForm::kLargest, stored, &codes), numbers({4}));
  EXPECT_EQ(made_in(LiveForm::kOfRows, stored, &codes), numbers({0.5F, 4, 2, 1, 1}));
  EXPECT_EQ(made_in(LiveForm::kLargestOfRows, stored, &codes), numbers({4, 4, 4, 4, 4}));
  EXPECT_EQ(all_made_in(LiveForm::kFirst, stored, &codes),
            (std::vector{numbers({0.5F}), numbers({0.5F, 0.5F, 0.5F, 0.5F, 0.5F})}));
  codes.rows.pop_back();
  EXPECT_EQ(made_in(LiveForm::kOfRows, stored, &codes), std::nullopt);
  EXPECT_EQ(made_in(LiveForm::kLargestOfExperts, stored, &codes), std::nullopt);
  const LiveBytes of_experts{.bytes = stored.bytes, .dtype = DType::kF32, .shape = {2, 2}};
  EXPECT_EQ(made_in(LiveForm::kLargestOfExperts, of_experts, nullptr), numbers({4, 2}));
}

TEST(ComparedName, ModulesOfSeveralNamesAreOne) {
  EXPECT_EQ(compared_name("model.layers.1.mlp.experts._shared_experts._layer.down_proj.weight"),
            "model.layers.1.mlp.shared_experts.down_proj.weight");
  EXPECT_EQ(compared_name("model.layers.1.self_attn.fused_qkv_a_proj_with_mqa.weight"),
            compared_name("model.layers.1.self_attn.fused_qkv_a_proj.weight"));
  EXPECT_EQ(compared_name("a.experts.routed_experts.w13_weight"), "a.experts.w13_weight");
  EXPECT_EQ(compared_name("a.o_proj.weight_packed"), "a.o_proj.weight");
  EXPECT_EQ(compared_name("a.experts.w13_weight_packed"), "a.experts.w13_weight");
  EXPECT_EQ(compared_name("a.weight_packed.b"), "a.weight_packed.b");
}

}  // namespace
}  // namespace ingot::engines
