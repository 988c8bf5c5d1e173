#include "shard/align/align_blocks.h"

#include "formats/json/json.h"
#include "shard/align/aligned_part.h"
#include "tests/shard/model_tensors.h"
#include "tests/support/test.h"

namespace ingot::shard {
namespace {

using namespace formats;
using namespace ingot::testing;
using namespace ::testing;

/// Chooses the scheme of a tensor.
using SchemeChoice = std::function<formats::SchemeId(const formats::LogicalTensor&)>;

/// `scheme` for tensors that a release quantizes, BF16 for the rest.
SchemeChoice released_as(formats::SchemeId scheme) {
  return [scheme](const formats::LogicalTensor& tensor) {
    return tensor.rule->fp8_by_default ? scheme : formats::SchemeId::kBf16;
  };
}

/// A model as align_blocks sees it, in blocks of 128 x 128.
std::vector<shard::TensorToAlign> to_fit(const ModelTensors& model, const shard::Slicing& slicing,
                                         const SchemeChoice& scheme_of) {
  std::vector<shard::TensorToAlign> tensors;
  ErrorList faults;
  for (const formats::LogicalTensor& tensor : model.tensors()) {
    const formats::SchemeId scheme = scheme_of(tensor);
    tensors.push_back({.tensor = &tensor,
                       .scheme = scheme,
                       .group = formats::scheme_facts(scheme).quantized
                                    ? formats::scale_group(scheme, tensor.shape)
                                    : std::array<std::uint64_t, 2>{0, 0},
                       .cut = shard::cut_of(tensor, model.config(), slicing, faults)});
  }
  faults.throw_if_any();
  return tensors;
}

/// The results of align_blocks, by name.
struct FitsByName {
  shard::Alignments fits;
  std::map<std::string, shard::Alignment> by_name;

  [[nodiscard]] const shard::Alignment& of(const std::string& name) const {
    return by_name.at(name);
  }
};

FitsByName align_model(const ModelTensors& model, const shard::Slicing& slicing,
                       const SchemeChoice& scheme_of) {
  const auto tensors = to_fit(model, slicing, scheme_of);
  FitsByName result;
  result.fits = shard::align_blocks(tensors, model.config(), slicing);
  for (std::size_t i = 0; i < tensors.size(); ++i)
    result.by_name.emplace(tensors[i].tensor->name, result.fits.tensors.at(i));
  return result;
}

shard::Slicing slicing_of(shard::TpFit fit, std::uint32_t tp, std::uint32_t ep = 1,
                          std::optional<std::uint32_t> etp = {}) {
  shard::Slicing slicing;
  slicing.topology = shard::make_topology(tp, ep, etp, 1);
  slicing.experts = shard::ExpertMap::contiguous(ep, ep);
  slicing.fit = fit;
  return slicing;
}

constexpr const char* kDense = "model.layers.0.mlp.";
constexpr const char* kExpert = "model.layers.1.mlp.experts.3.";
constexpr const char* kShared = "model.layers.1.mlp.shared_experts.";
constexpr const char* kAttention = "model.layers.1.self_attn.";

/// The widths of DeepSeek-V3 with a dense and a mixture layer, an MTP layer and 8 experts: dense
/// 18432, experts and shared expert 2048, 128 heads, vocabulary 129280.
ModelTensors v3(const Json& changes = Json::object(), bool stacked = false) {
  Json keys = {{"num_hidden_layers", 2}, {"first_k_dense_replace", 1}, {"n_routed_experts", 8}};
  keys.update(changes);
  return {"deepseek_v3", keys, stacked};
}

std::string refusal(const ModelTensors& model, const Slicing& slicing,
                    const SchemeChoice& scheme_of) {
  try {
    align_model(model, slicing, scheme_of);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "was not refused";
  return {};
}

void expect_untouched(const FitsByName& result) {
  EXPECT_THAT(result.fits.tensors, Each(Alignment{}));
  EXPECT_THAT(result.fits.block, ElementsAre(0, 0));
  EXPECT_EQ(result.fits.widths.vocab, 0U);
  EXPECT_EQ(result.fits.widths.intermediate, 0U);
  EXPECT_EQ(result.fits.widths.moe_intermediate, 0U);
}

TEST(AlignBlocks, ChangesNothingWhereEverythingFits) {
  const ModelTensors model = v3();
  for (const TpFit fit : {TpFit::kRefuse, TpFit::kRetile, TpFit::kPad, TpFit::kBf16}) {
    for (const std::uint32_t tp : {1U, 2U, 4U, 8U, 16U})
      expect_untouched(align_model(model, slicing_of(fit, tp), released_as(SchemeId::kFp8Block)));
    // 2048 / 128 = 16 blocks, but experts are whole and shared ones follow TP 16.
    expect_untouched(align_model(model, slicing_of(fit, 16, 8), released_as(SchemeId::kFp8Block)));
  }
}

TEST(AlignBlocks, RefusesTornBlocksWithTheRemediesThatWork) {
  const std::string text =
      refusal(v3(), slicing_of(TpFit::kRefuse, 32), released_as(SchemeId::kFp8Block));
  EXPECT_THAT(text, HasSubstr("tensor 'model.layers.1.mlp.shared_experts.gate_proj.weight': 2048 "
                              "rows / 32 ranks = 64, the FP8 block has 128 rows (--tp-fit retile, "
                              "pad or bf16; or --tp 16); 1 more like it"));
  EXPECT_THAT(text, HasSubstr("tensor 'model.layers.1.mlp.shared_experts.down_proj.weight': 2048 "
                              "columns / 32 ranks = 64, the FP8 block has 128 columns (--tp-fit "
                              "retile, pad or bf16; or --tp 16); 1 more like it"));
  // 8 experts in each of two layers, one named.
  EXPECT_THAT(text,
              HasSubstr("tensor 'model.layers.1.mlp.experts.0.up_proj.weight': 2048 rows / 32 "
                        "ranks = 64, the FP8 block has 128 rows (--tp-fit retile, pad or "
                        "bf16; or --etp 16); 15 more like it"));
  // 18432 / 32 = 576 = 4.5 blocks.
  EXPECT_THAT(text, HasSubstr("tensor 'model.layers.0.mlp.gate_proj.weight': 18432 rows / 32 ranks "
                              "= 576, the FP8 block has 128 rows"));
  EXPECT_THAT(text, Not(HasSubstr("self_attn")))
      << "768 rows of q_b_proj and 512 columns of o_proj";
}

TEST(AlignBlocks, RefusesWidthsThatDoNotDivide) {
  const std::string text =
      refusal(v3({{"num_attention_heads", 96}}), slicing_of(TpFit::kRefuse, 48, 8),
              released_as(SchemeId::kInt8Channel));
  EXPECT_THAT(text, HasSubstr("'model.layers.1.mlp.shared_experts.gate_proj.weight': 2048 rows "
                              "cannot be cut for 48 ranks (--tp-fit pad; or --tp 32)"));
  EXPECT_THAT(text, HasSubstr("'model.embed_tokens.weight': 129280 rows cannot be cut for 48 ranks "
                              "(--tp-fit pad; or --tp 32)"));
  EXPECT_THAT(text, Not(HasSubstr("mlp.gate_proj"))) << "18432 is 48 x 384";
}

TEST(AlignBlocks, NumbersOfRanksOfferedCutTheHeadsToo) {
  // 1536 = 32 x 48, but 24 heads allow 24, 12 ... of which 24 gives 64 rows, 12 gives 128.
  const std::string text =
      refusal(v3({{"num_attention_heads", 24}, {"moe_intermediate_size", 1536}}),
              slicing_of(TpFit::kRefuse, 24, 8), released_as(SchemeId::kFp8Block));
  EXPECT_THAT(text, HasSubstr("1536 rows / 24 ranks = 64, the FP8 block has 128 rows (--tp-fit "
                              "retile, pad or bf16; or --tp 12)"));
}

TEST(AlignBlocks, RetilingHalvesWhatTheCutNeeds) {
  const FitsByName result =
      align_model(v3(), slicing_of(TpFit::kRetile, 32, 8), released_as(SchemeId::kFp8Block));
  EXPECT_THAT(result.fits.block, ElementsAre(64, 64));
  for (const auto& [name, fit] : result.by_name) {
    EXPECT_FALSE(fit.to_bf16);
    EXPECT_THAT(fit.padded, ElementsAre(0, 0));
  }
  // Replicated and expert tensors as well; plain ones not.
  for (const std::string& name :
       {std::string(kAttention) + "q_a_proj.weight", std::string(kExpert) + "down_proj.weight",
        std::string(kShared) + "gate_proj.weight"}) {
    EXPECT_THAT(result.of(name).block, ElementsAre(64, 64)) << name;
  }
  EXPECT_THAT(result.of("model.embed_tokens.weight").block, ElementsAre(0, 0));
}

TEST(AlignBlocks, RetilingLeavesTheAxisThatFits) {
  // 128 heads: q_b_proj has 192 rows per head, kv_b_proj 256, o_proj 128 columns. Everything else
  // is replicated or whole.
  Slicing slicing = slicing_of(TpFit::kRetile, 128, 8);
  slicing.shared = SharedExperts::kReplicated;
  const FitsByName result =
      align_model(v3({{"first_k_dense_replace", 0}}), slicing, released_as(SchemeId::kFp8Block));
  EXPECT_THAT(result.fits.block, ElementsAre(64, 128));
}

TEST(AlignBlocks, RetilesEveryBlockToOneThatAllDivide) {
  const ModelTensors model = v3();
  const Slicing slicing = slicing_of(TpFit::kRetile, 32, 8);
  auto tensors = to_fit(model, slicing, released_as(SchemeId::kFp8Block));
  for (TensorToAlign& tensor : tensors) {
    if (tensor.tensor->rule->role == formats::Role::kQaProj) tensor.group = {128, 32};
  }
  const Alignments fits = align_blocks(tensors, model.config(), slicing);
  EXPECT_THAT(fits.block, ElementsAre(64, 32));
}

TEST(AlignBlocks, RetilesFp8BlocksOnly) {
  const std::string int8 =
      refusal(v3(), slicing_of(TpFit::kRetile, 32, 8), released_as(SchemeId::kInt8Block));
  EXPECT_THAT(int8,
              HasSubstr("2048 rows / 32 ranks = 64, the INT8 block has 128 rows (--tp-fit pad "
                        "or bf16; or --tp 16)"));
  // 2048 / 256 = 8 columns.
  const ModelTensors many_heads = v3({{"num_attention_heads", 256}});
  const std::string nvfp4 =
      refusal(many_heads, slicing_of(TpFit::kRetile, 256, 8), released_as(SchemeId::kNvfp4));
  EXPECT_THAT(nvfp4, HasSubstr("2048 columns / 256 ranks = 8, the nvfp4 group has 16 columns "
                               "(--tp-fit pad or bf16; or --tp 128)"));
  EXPECT_THAT(nvfp4, Not(HasSubstr("gate_proj"))) << "groups of columns do not mind cut rows";
}

TEST(AlignBlocks, IndivisibleWidthsCannotBeRetiledOrCast) {
  const ModelTensors model = v3({{"num_attention_heads", 96}});
  for (const TpFit fit : {TpFit::kRetile, TpFit::kBf16}) {
    EXPECT_THAT(refusal(model, slicing_of(fit, 48, 8), released_as(SchemeId::kFp8Block)),
                HasSubstr("2048 rows cannot be cut for 48 ranks (--tp-fit pad; or --tp 16)"));
  }
}

TEST(AlignBlocks, PadsFeedForwardWidthsTogether) {
  const FitsByName result =
      align_model(v3(), slicing_of(TpFit::kPad, 32), released_as(SchemeId::kFp8Block));
  // Multiples of 32 x 128: 2048 -> 4096, 18432 -> 20480; the vocabulary divides.
  EXPECT_EQ(result.fits.widths.moe_intermediate, 4096U);
  EXPECT_EQ(result.fits.widths.intermediate, 20480U);
  EXPECT_EQ(result.fits.widths.vocab, 0U);
  for (const std::string& module : {std::string(kExpert), std::string(kShared)}) {
    EXPECT_THAT(result.of(module + "gate_proj.weight").padded, ElementsAre(4096, 0));
    EXPECT_THAT(result.of(module + "up_proj.weight").padded, ElementsAre(4096, 0));
    EXPECT_THAT(result.of(module + "down_proj.weight").padded, ElementsAre(0, 4096));
  }
  EXPECT_THAT(result.of(std::string(kDense) + "up_proj.weight").padded, ElementsAre(20480, 0));
  EXPECT_THAT(result.of(std::string(kDense) + "down_proj.weight").padded, ElementsAre(0, 20480));
  EXPECT_EQ(result.of(std::string(kAttention) + "o_proj.weight"), Alignment{});
  EXPECT_THAT(result.fits.block, ElementsAre(0, 0));
}

TEST(AlignBlocks, PadsWholeExpertsWithTheSharedOne) {
  // Experts are whole (etp 1), the shared one is cut by 32: config.json knows one width.
  const FitsByName result =
      align_model(v3(), slicing_of(TpFit::kPad, 32, 8), released_as(SchemeId::kFp8Block));
  EXPECT_EQ(result.fits.widths.moe_intermediate, 4096U);
  EXPECT_THAT(result.of(std::string(kExpert) + "up_proj.weight").padded, ElementsAre(4096, 0));
  EXPECT_THAT(result.of("model.layers.2.mlp.experts.7.down_proj.weight").padded,
              ElementsAre(0, 4096))
      << "MTP";
}

TEST(AlignBlocks, PadsSharedExpertsByOneWidth) {
  // V2-Lite: experts 1408, two shared ones 2816, dense 10944, 16 heads.
  const ModelTensors lite("deepseek_v2", {{"num_hidden_layers", 2}, {"n_routed_experts", 4}});
  const FitsByName both =
      align_model(lite, slicing_of(TpFit::kPad, 4), released_as(SchemeId::kFp8Block));
  EXPECT_EQ(both.fits.widths.moe_intermediate, 1536U);  // 3 x 4 x 128
  EXPECT_EQ(both.fits.widths.intermediate, 11264U);     // 22 x 4 x 128
  EXPECT_THAT(both.of(std::string(kExpert) + "up_proj.weight").padded, ElementsAre(1536, 0));
  EXPECT_THAT(both.of(std::string(kShared) + "up_proj.weight").padded, ElementsAre(3072, 0));
  EXPECT_THAT(both.of(std::string(kShared) + "down_proj.weight").padded, ElementsAre(0, 3072));
  // With all cut by 8 the experts need multiples of 8 x 128, the shared ones of half of that.
  const FitsByName cut =
      align_model(lite, slicing_of(TpFit::kPad, 8), released_as(SchemeId::kFp8Block));
  EXPECT_EQ(cut.fits.widths.moe_intermediate, 2048U);
  const FitsByName shared =
      align_model(lite, slicing_of(TpFit::kPad, 8, 4), released_as(SchemeId::kFp8Block));
  EXPECT_EQ(shared.fits.widths.moe_intermediate, 1536U);
  EXPECT_THAT(shared.of(std::string(kExpert) + "up_proj.weight").padded, ElementsAre(1536, 0));
  EXPECT_THAT(shared.of(std::string(kShared) + "up_proj.weight").padded, ElementsAre(3072, 0));
}

TEST(AlignBlocks, PaddedWidthsSuitEverySchemeThatHasThem) {
  // Routed experts in NVFP4 by etp 3, shared ones in FP8 by tp 4: lcm of 3 x 16 and 4 x 128.
  const ModelTensors model = v3({{"moe_intermediate_size", 1408}});
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kPad, 4, 1, 3), [](const LogicalTensor& tensor) {
        return tensor.expert ? SchemeId::kNvfp4 : released_as(SchemeId::kFp8Block)(tensor);
      });
  EXPECT_EQ(result.fits.widths.moe_intermediate, 1536U);
}

TEST(AlignBlocks, PadsTheVocabulary) {
  // 129280 = 2^8 x 5 x 101.
  const ModelTensors model = v3(
      {{"num_attention_heads", 96}, {"intermediate_size", 12288}, {"moe_intermediate_size", 3072}});
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kPad, 3), released_as(SchemeId::kBf16));
  EXPECT_EQ(result.fits.widths.vocab, 129282U);
  for (const char* name :
       {"model.embed_tokens.weight", "lm_head.weight", "model.layers.2.embed_tokens.weight",
        "model.layers.2.shared_head.head.weight"}) {
    EXPECT_THAT(result.of(name).padded, ElementsAre(129282, 0));
  }
  EXPECT_EQ(result.fits.widths.intermediate, 0U);
}

TEST(AlignBlocks, PadsSectionsOfAStackEach) {
  const ModelTensors model = v3(Json::object(), true);
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kPad, 32), released_as(SchemeId::kFp8Block));
  EXPECT_THAT(result.of("model.layers.1.mlp.experts.gate_up_proj").padded, ElementsAre(4096, 0));
  EXPECT_THAT(result.of("model.layers.1.mlp.experts.down_proj").padded, ElementsAre(0, 4096));
}

TEST(AlignBlocks, RefusesToPadJoinedGateAndUp) {
  const ModelTensors model = v3({{"moe_intermediate_size", 192}}, true);
  EXPECT_THAT(refusal(model, slicing_of(TpFit::kPad, 2), released_as(SchemeId::kFp8Block)),
              HasSubstr("'model.layers.1.mlp.experts.gate_up_proj': gate and up share an FP8 block "
                        "of 128 rows, which padding would tear apart (--tp-fit retile or bf16"));
  const FitsByName retiled =
      align_model(model, slicing_of(TpFit::kRetile, 2), released_as(SchemeId::kFp8Block));
  EXPECT_THAT(retiled.fits.block, ElementsAre(32, 32));
}

TEST(AlignBlocks, NeverPadsHeads) {
  const std::string text =
      refusal(v3({{"first_k_dense_replace", 0}}), slicing_of(TpFit::kPad, 128, 8),
              released_as(SchemeId::kFp8Block));
  EXPECT_THAT(text, HasSubstr("q_b_proj.weight': 24576 rows / 128 ranks = 192, the FP8 block has "
                              "128 rows (--tp-fit retile or bf16; or --tp 64)"));
  EXPECT_THAT(text, Not(HasSubstr("mlp")));
}

TEST(AlignBlocks, CastsWholeFusedGroups) {
  const FitsByName result =
      align_model(v3(), slicing_of(TpFit::kBf16, 32), released_as(SchemeId::kFp8Block));
  for (const auto& [name, fit] : result.by_name) {
    const bool is_feed_forward =
        name.find("proj.weight") != std::string::npos && name.find(".mlp.") != std::string::npos;
    EXPECT_EQ(fit.to_bf16, is_feed_forward) << name;
  }
  EXPECT_THAT(result.fits.block, ElementsAre(0, 0));
}

TEST(AlignBlocks, CastsAllExpertsOfALayerTogether) {
  // Only down_proj has groups of columns that are torn: 768 / 32 = 24.
  const ModelTensors model("qwen3_moe", {{"num_hidden_layers", 2}, {"num_experts", 4}});
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kBf16, 32), released_as(SchemeId::kNvfp4));
  EXPECT_TRUE(result.of("model.layers.1.mlp.experts.3.gate_proj.weight").to_bf16);
  EXPECT_TRUE(result.of("model.layers.0.mlp.experts.0.down_proj.weight").to_bf16);
  EXPECT_FALSE(result.of("model.layers.0.self_attn.q_proj.weight").to_bf16);
  EXPECT_FALSE(result.of("model.layers.0.mlp.gate.weight").to_bf16) << "is plain already";
}

TEST(AlignBlocks, CastsQueriesWithTheirKeys) {
  // TP 4 has 128 rows of queries and 64 of keys, out of 8 heads x 64 and 4 KV heads x 64.
  const ModelTensors model("qwen3_moe", {{"num_hidden_layers", 1},
                                         {"num_experts", 4},
                                         {"head_dim", 64},
                                         {"num_attention_heads", 8},
                                         {"moe_intermediate_size", 1024}});
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kBf16, 4), released_as(SchemeId::kFp8Block));
  const std::string attention = "model.layers.0.self_attn.";
  for (const char* part : {"q_proj", "k_proj", "v_proj"})
    EXPECT_TRUE(result.of(attention + part + ".weight").to_bf16) << part;
  EXPECT_FALSE(result.of(attention + "o_proj.weight").to_bf16);
  EXPECT_FALSE(result.of("model.layers.0.mlp.experts.0.up_proj.weight").to_bf16);
}

TEST(AlignBlocks, DownProjectionsOfDenseLayersAreCastAlone) {
  // 576 columns / 4 = 144 = 9 groups of 16; / 8 = 72 are 4.5.
  const ModelTensors model = v3({{"intermediate_size", 576}});
  const FitsByName result =
      align_model(model, slicing_of(TpFit::kBf16, 8), released_as(SchemeId::kNvfp4));
  EXPECT_TRUE(result.of(std::string(kDense) + "down_proj.weight").to_bf16);
  EXPECT_FALSE(result.of(std::string(kDense) + "gate_proj.weight").to_bf16);
}

TEST(AlignBlocks, ScalesOfRowsAndTensorsDoNotMind) {
  for (const SchemeId scheme : {SchemeId::kInt8Channel, SchemeId::kFp8Channel, SchemeId::kFp8Tensor,
                                SchemeId::kBf16, SchemeId::kF32}) {
    expect_untouched(align_model(v3(), slicing_of(TpFit::kRefuse, 128), released_as(scheme)));
  }
}

TEST(AlignBlocks, NarrowBlocksStillCount) {
  // 64 rows are less than a block, which is torn all the same.
  EXPECT_THAT(refusal(v3({{"moe_intermediate_size", 64}}), slicing_of(TpFit::kRefuse, 2),
                      released_as(SchemeId::kFp8Block)),
              HasSubstr("64 rows / 2 ranks = 32, the FP8 block has 128 rows"));
}

TEST(AlignBlocks, RefusesPaddingBeyondReason) {
  // 4095 ranks for the shared expert and 4096 for routed ones have no small common multiple.
  const ModelTensors model = v3({{"num_attention_heads", 4095}});
  auto tensors = to_fit(model, slicing_of(TpFit::kPad, 1), released_as(SchemeId::kFp8Block));
  for (TensorToAlign& tensor : tensors) {
    if (tensor.tensor->rule->cut == formats::Cut::kReplicated) continue;
    if (tensor.tensor->rule->role == formats::Role::kSharedUp)
      tensor.cut = {.axis = Axis::kRows, .owner = Owner::kTp, .n = 4095};
    if (tensor.tensor->expert) {
      tensor.cut = {
          .axis = tensor.tensor->rule->cut == formats::Cut::kRow ? Axis::kCols : Axis::kRows,
          .owner = Owner::kExpert,
          .n = 4096};
      tensor.group = {4093, 4093};
    }
  }
  expect_error(ErrorCode::kLimit, {"multiples of both"},
               [&] { align_blocks(tensors, model.config(), slicing_of(TpFit::kPad, 1)); });
}

// Bytes of the number one in the standard of each format.
TEST(PartAligner, FillsScalesWithOneInEachType) {
  for (const auto& [dtype, one] : {std::pair(DType::kF32, std::string("\0\0\x80\x3F", 4)),
                                   {DType::kBf16, "\x80\x3F"},
                                   {DType::kF16, std::string("\0\x3C", 2)},
                                   {DType::kF8E4M3, "\x38"},
                                   {DType::kU8, "\x7F"},
                                   {DType::kF8E8M0, "\x7F"}}) {
    const std::string last(one.size(), '\x55');
    std::string written;
    PartAligner(Part::kScale, SchemeId::kNvfp4, dtype, {1, 1}, {.shape = {2, 2}, .weight = {2, 32}})
        .push(std::as_bytes(std::span(last)), [&](std::span<const std::byte> bytes) {
          written.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
        });
    EXPECT_EQ(written, last + one + one + one) << dtype_name(dtype);
  }
  expect_error(ErrorCode::kUnsupported, "cannot be padded", [] {
    PartAligner(Part::kDeqScale, SchemeId::kInt8Channel, DType::kI64, {1}, {.shape = {2}});
  });
}

}  // namespace
}  // namespace ingot::shard
