#include "engines/live/live_answer.h"

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

TEST(InForm, RowsAndColumnsArePutWhereEnginesPutThem) {
  const auto stored = bytes_of({1, 2, 3, 4, 5, 6, 7, 8});
  const LiveBytes matrix{.bytes = stored, .dtype = DType::kI8, .shape = {2, 4}};
  EXPECT_EQ(in_form(LiveForm::kTransposed, matrix, nullptr), bytes_of({1, 5, 2, 6, 3, 7, 4, 8}));
  const LiveBytes stack{.bytes = stored, .dtype = DType::kI8, .shape = {1, 4, 2}};
  EXPECT_EQ(in_form(LiveForm::kHalvesSwapped, stack, nullptr), bytes_of({5, 6, 7, 8, 1, 2, 3, 4}));
  EXPECT_EQ(in_form(LiveForm::kRowsInterleaved, stack, nullptr),
            bytes_of({1, 2, 5, 6, 3, 4, 7, 8}));
  EXPECT_EQ(in_form(LiveForm::kTransposed, stack, nullptr), std::nullopt);
  EXPECT_EQ(in_form(LiveForm::kHalvesSwapped, matrix, nullptr), std::nullopt);
  EXPECT_EQ(in_form(LiveForm::kDecoded, matrix, nullptr), std::nullopt);
}

// Two blocks of a row: ones under scales of 1.75 and a bit, and of 0.5.
TEST(InForm, ScalesBecomePowersOfTwo) {
  const std::vector<std::byte> codes(130, std::byte{0x38});
  const std::array<float, 2> scales = {1.75341796875F, 0.5F};
  const LiveBytes of_codes{.bytes = codes, .dtype = DType::kF8E4M3, .shape = {1, 130}};
  const LiveBytes of_scales{
      .bytes = std::as_bytes(std::span(scales)), .dtype = DType::kF32, .shape = {1, 2}};
  const auto encoded = [&](LiveForm form, int first) {
    const auto made = in_form(form, of_codes, &of_scales).value();
    EXPECT_EQ(made[0], static_cast<std::byte>(first));
    EXPECT_EQ(made[127], made[0]);
    EXPECT_EQ(made[128], std::byte{0x78});  // 256
  };
  encoded(LiveForm::kPowersOfTwo, 0x76);    // 224.4
  encoded(LiveForm::kRoundedPowers, 0x7E);  // 1.75 in BF16, so 448
  const std::array<float, 2> powers = {0x1p-7F, 0x1p-9F};
  const auto expected = std::as_bytes(std::span(powers));
  EXPECT_EQ(in_form(LiveForm::kPowersOfTwo, of_scales, &of_codes),
            std::vector<std::byte>(expected.begin(), expected.end()));
  EXPECT_EQ(in_form(LiveForm::kPackedPowers, of_scales, &of_codes), bytes_of({120, 118, 0, 0}));
  EXPECT_EQ(in_form(LiveForm::kPackedRounded, of_scales, &of_codes), bytes_of({119, 118, 0, 0}));
  EXPECT_EQ(in_form(LiveForm::kPackedPowers, of_codes, &of_scales), std::nullopt);
  EXPECT_EQ(in_form(LiveForm::kDecodedPowers, of_scales, &of_codes), std::nullopt);
  EXPECT_EQ(in_form(LiveForm::kPowersOfTwo, of_scales, nullptr), std::nullopt);
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
  EXPECT_EQ(in_form(LiveForm::kTiles, scales, nullptr), expected);
  // The matrices of a stack follow each other.
  const auto once = stored;
  stored.insert(stored.end(), once.begin(), once.end());
  const LiveBytes stack{.bytes = stored, .dtype = DType::kF8E4M3, .shape = {2, kRows, kCols}};
  const auto tiles = expected;
  expected.insert(expected.end(), tiles.begin(), tiles.end());
  EXPECT_EQ(in_form(LiveForm::kTiles, stack, nullptr), expected);
}

TEST(InForm, LargestReciprocalIsOneNumber) {
  const std::array<float, 3> values = {0.5F, 4.0F, 2.0F};
  const LiveBytes stored{
      .bytes = std::as_bytes(std::span(values)), .dtype = DType::kF32, .shape = {3}};
  const float quarter = 0.25F;
  const auto expected = std::as_bytes(std::span(&quarter, 1));
  EXPECT_EQ(in_form(LiveForm::kLargestReciprocal, stored, nullptr),
            std::vector<std::byte>(expected.begin(), expected.end()));
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
