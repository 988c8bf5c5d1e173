#include "formats/family/decoder_rules.h"
#include "formats/family/family_table.h"

// Names as released, which are those of DeepSeek's own inference code: no `model.` before them, and
// `mtp.N` for the MTP layers. Scales are called `.scale`; routed experts are MXFP4, everything else
// that is quantized FP8 in blocks. docs/formats.md, "DeepSeek-V4".

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 1> kModelTypes = {"deepseek_v4"};

constexpr std::string_view kMainPrefix = "layers.{layer}.";
constexpr std::string_view kMtpPrefix = "mtp.{mtp}.";

/// A tensor whose shape config.json does not give; placed() gives those of a layer their scope.
template <class... Traits>
constexpr TensorRule shapeless(std::string_view pattern, Traits... traits) {
  TensorRule rule = plain_rule(pattern, Role::kOther, Scope::kModel, {}, traits...);
  rule.any_shape = true;
  return rule;
}

constexpr TensorRule shapeless_linear(std::string_view pattern, Role role) {
  TensorRule rule = linear_rule(pattern, role, Scope::kModel, {});
  rule.any_shape = true;
  return rule;
}

/// A layer, whether main or MTP, behind its prefix. Which layers have a compressor, an indexer, and
/// a table in place of the router's bias, follows from lists of the config that are not read here.
constexpr std::array kBlockRows = {
    norm_rule("attn_norm.weight", Role::kInputNorm, Scope::kMainLayer, Dim::kHidden),
    norm_rule("ffn_norm.weight", Role::kPostAttentionNorm, Scope::kMainLayer, Dim::kHidden),
    shapeless("hc_attn_fn", DType::kF32),
    shapeless("hc_attn_base", DType::kF32),
    shapeless("hc_attn_scale", DType::kF32),
    shapeless("hc_ffn_fn", DType::kF32),
    shapeless("hc_ffn_base", DType::kF32),
    shapeless("hc_ffn_scale", DType::kF32),
    shapeless("attn.attn_sink", DType::kF32),
    linear_rule("attn.wq_a.weight", Role::kQaProj, Scope::kMainLayer, {Dim::kQLora, Dim::kHidden},
                Fuse::kQaKva),
    norm_rule("attn.q_norm.weight", Role::kQaNorm, Scope::kMainLayer, Dim::kQLora),
    linear_rule("attn.wq_b.weight", Role::kQbProj, Scope::kMainLayer, {Dim::kGqaQ, Dim::kQLora}),
    linear_rule("attn.wkv.weight", Role::kKvaProj, Scope::kMainLayer, {Dim::kHeadDim, Dim::kHidden},
                Fuse::kQaKva),
    norm_rule("attn.kv_norm.weight", Role::kKvaNorm, Scope::kMainLayer, Dim::kHeadDim),
    shapeless_linear("attn.wo_a.weight", Role::kOProj),
    shapeless_linear("attn.wo_b.weight", Role::kOProj),
    shapeless("attn.compressor.ape", DType::kF32, Presence::kOptional),
    shapeless("attn.compressor.wkv.weight", DType::kBf16, Presence::kOptional),
    shapeless("attn.compressor.wgate.weight", DType::kBf16, Presence::kOptional),
    shapeless("attn.compressor.norm.weight", DType::kBf16, Presence::kOptional),
    linear_rule("attn.indexer.wq_b.weight", Role::kIndexerQ, Scope::kMainLayer,
                {Dim::kIndexQ, Dim::kQLora}, Presence::kOptional),
    plain_rule("attn.indexer.weights_proj.weight", Role::kIndexerWeights, Scope::kMainLayer,
               {Dim::kIndexHeads, Dim::kHidden}, Presence::kOptional),
    shapeless("attn.indexer.compressor.ape", DType::kF32, Presence::kOptional),
    shapeless("attn.indexer.compressor.wkv.weight", DType::kBf16, Presence::kOptional),
    shapeless("attn.indexer.compressor.wgate.weight", DType::kBf16, Presence::kOptional),
    shapeless("attn.indexer.compressor.norm.weight", DType::kBf16, Presence::kOptional),
    plain_rule("ffn.gate.weight", Role::kRouter, Scope::kMainLayer, {Dim::kExperts, Dim::kHidden}),
    plain_rule("ffn.gate.bias", Role::kRouterBias, Scope::kMainLayer, {Dim::kExperts},
               Presence::kOptional, DType::kF32),
    shapeless("ffn.gate.tid2eid", DType::kI64, Presence::kOptional),
    linear_rule("ffn.experts.{expert}.w1.weight", Role::kExpertGate, Scope::kMainLayer,
                {Dim::kMoeIntermediate, Dim::kHidden}, Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("ffn.experts.{expert}.w3.weight", Role::kExpertUp, Scope::kMainLayer,
                {Dim::kMoeIntermediate, Dim::kHidden}, Fuse::kGateUp, Presence::kPerExpert),
    linear_rule("ffn.experts.{expert}.w2.weight", Role::kExpertDown, Scope::kMainLayer,
                {Dim::kHidden, Dim::kMoeIntermediate}, Presence::kPerExpert),
    linear_rule("ffn.shared_experts.w1.weight", Role::kSharedGate, Scope::kMainLayer,
                {Dim::kSharedIntermediate, Dim::kHidden}, Fuse::kGateUp,
                Presence::kWithSharedExperts),
    linear_rule("ffn.shared_experts.w3.weight", Role::kSharedUp, Scope::kMainLayer,
                {Dim::kSharedIntermediate, Dim::kHidden}, Fuse::kGateUp,
                Presence::kWithSharedExperts),
    linear_rule("ffn.shared_experts.w2.weight", Role::kSharedDown, Scope::kMainLayer,
                {Dim::kHidden, Dim::kSharedIntermediate}, Presence::kWithSharedExperts),
};

constexpr std::array kMtpRows = {
    linear_rule("e_proj.weight", Role::kMtpProj, Scope::kMainLayer, {Dim::kHidden, Dim::kHidden}),
    linear_rule("h_proj.weight", Role::kMtpProj, Scope::kMainLayer, {Dim::kHidden, Dim::kHidden}),
    norm_rule("enorm.weight", Role::kMtpEmbeddingNorm, Scope::kMtpLayer, Dim::kHidden),
    norm_rule("hnorm.weight", Role::kMtpHiddenNorm, Scope::kMtpLayer, Dim::kHidden),
    norm_rule("norm.weight", Role::kMtpHeadNorm, Scope::kMtpLayer, Dim::kHidden),
    shapeless("hc_head_fn", DType::kF32),
    shapeless("hc_head_base", DType::kF32),
    shapeless("hc_head_scale", DType::kF32),
};

constexpr std::array kModelRows = {
    plain_rule("embed.weight", Role::kEmbedding, Scope::kModel, {Dim::kVocab, Dim::kHidden}),
    norm_rule("norm.weight", Role::kFinalNorm, Scope::kModel, Dim::kHidden),
    plain_rule("head.weight", Role::kHead, Scope::kModel, {Dim::kVocab, Dim::kHidden},
               Presence::kUntied),
    shapeless("hc_head_fn", DType::kF32),
    shapeless("hc_head_base", DType::kF32),
    shapeless("hc_head_scale", DType::kF32),
};

/// Text of the patterns of N rows behind a prefix.
template <std::size_t N>
struct PatternTexts {
  std::array<std::array<char, 64>, N> text{};
  std::array<std::size_t, N> n_chars{};
};

template <std::size_t N>
constexpr PatternTexts<N> prefixed(std::string_view prefix, const std::array<TensorRule, N>& rows) {
  PatternTexts<N> result;
  for (std::size_t i = 0; i < N; ++i) {
    for (const std::string_view part : {prefix, rows[i].pattern}) {
      for (const char c : part) result.text[i][result.n_chars[i]++] = c;
    }
  }
  return result;
}

template <std::size_t N>
constexpr std::array<TensorRule, N> placed(std::array<TensorRule, N> rows,
                                           const PatternTexts<N>& patterns, Scope scope) {
  for (std::size_t i = 0; i < N; ++i) {
    rows[i].pattern = {patterns.text[i].data(), patterns.n_chars[i]};
    rows[i].scope = scope;
  }
  return rows;
}

constexpr auto kMainPatterns = prefixed(kMainPrefix, kBlockRows);
constexpr auto kMtpBlockPatterns = prefixed(kMtpPrefix, kBlockRows);
constexpr auto kMtpPatterns = prefixed(kMtpPrefix, kMtpRows);

constexpr auto kRules =
    concat_rules(kModelRows, placed(kBlockRows, kMainPatterns, Scope::kMainLayer),
                 placed(kBlockRows, kMtpBlockPatterns, Scope::kMtpLayer),
                 placed(kMtpRows, kMtpPatterns, Scope::kMtpLayer));

}  // namespace

const Family kDeepseekV4 = {
    .name = "deepseek_v4",
    .summary = "DeepSeek V4 under its native names: a source, and copied untouched",
    .model_types = kModelTypes,
    .architecture = "DeepseekV4ForCausalLM",
    .rules = kRules,
    .reference_config = ""};

}  // namespace ingot::formats
