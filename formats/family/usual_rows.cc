#include "formats/family/usual_rows.h"

#include <algorithm>
#include <array>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ingot::formats {
namespace {

struct RoleRow {
  Role role;
  UsualRow usual;
};

constexpr std::string_view kHidden = "hidden_size";
constexpr std::string_view kQueryWidths =
    "num_attention_heads * head_dim, 2 * num_attention_heads * head_dim, "
    "num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)";
constexpr std::string_view kKeyWidths = "num_key_value_heads * head_dim";
constexpr std::string_view kValueWidths =
    "num_attention_heads * v_head_dim, num_attention_heads * head_dim";
constexpr std::string_view kSharedWidth =
    "shared_intermediate_size, moe_intermediate_size, n_shared_experts * intermediate_size";
constexpr std::string_view kExpertWidth = "moe_intermediate_size, intermediate_size";
constexpr std::string_view kDenseWidth = "intermediate_size";

constexpr UsualRow linear(std::string_view out, std::string_view in, Cut cut = Cut::kReplicated,
                          Fuse fuse = Fuse::kNone) {
  return {.cut = cut, .fuse = fuse, .is_linear = true, .out = out, .in = in};
}

constexpr std::array kUsualRows = {
    RoleRow{Role::kEmbedding, {.cut = Cut::kVocab, .out = "vocab_size", .in = kHidden}},
    RoleRow{Role::kHead, {.cut = Cut::kVocab, .out = "vocab_size", .in = kHidden}},
    RoleRow{Role::kMtpEmbedding, {.cut = Cut::kVocab, .out = "vocab_size", .in = kHidden}},
    RoleRow{Role::kMtpHead, {.cut = Cut::kVocab, .out = "vocab_size", .in = kHidden}},
    RoleRow{Role::kMtpProj, {.out = kHidden, .in = "2 * hidden_size"}},
    RoleRow{Role::kFinalNorm, {.out = kHidden}},
    RoleRow{Role::kInputNorm, {.out = kHidden}},
    RoleRow{Role::kPostAttentionNorm, {.out = kHidden}},
    RoleRow{Role::kMtpEmbeddingNorm, {.out = kHidden}},
    RoleRow{Role::kMtpHiddenNorm, {.out = kHidden}},
    RoleRow{Role::kMtpHeadNorm, {.out = kHidden}},
    RoleRow{Role::kQNorm, {.out = "head_dim, num_attention_heads * head_dim"}},
    RoleRow{Role::kKNorm, {.out = "head_dim, num_key_value_heads * head_dim"}},
    RoleRow{Role::kQaNorm, {.out = "q_lora_rank"}},
    RoleRow{Role::kKvaNorm, {.out = "kv_lora_rank"}},
    RoleRow{Role::kAttentionSinks, {.cut = Cut::kColumn, .out = "num_attention_heads"}},
    RoleRow{Role::kQProj, linear(kQueryWidths, kHidden, Cut::kColumn, Fuse::kQkv)},
    RoleRow{Role::kKProj, linear(kKeyWidths, kHidden, Cut::kColumn, Fuse::kQkv)},
    RoleRow{Role::kVProj, linear(kKeyWidths, kHidden, Cut::kColumn, Fuse::kQkv)},
    RoleRow{Role::kOProj, linear(kHidden, kValueWidths, Cut::kRow)},
    RoleRow{Role::kAttentionGate,
            {.out = "num_attention_heads * head_dim, num_attention_heads", .in = kHidden}},
    RoleRow{Role::kLinearAttentionIn, linear({}, kHidden)},
    RoleRow{Role::kLinearAttentionOut, linear(kHidden, {})},
    RoleRow{Role::kQaProj, linear("q_lora_rank", kHidden, Cut::kReplicated, Fuse::kQaKva)},
    RoleRow{Role::kQbProj, linear(kQueryWidths, "q_lora_rank", Cut::kColumn)},
    RoleRow{Role::kKvaProj,
            linear("kv_lora_rank + qk_rope_head_dim", kHidden, Cut::kReplicated, Fuse::kQaKva)},
    RoleRow{Role::kKvbProj, linear("num_attention_heads * (qk_nope_head_dim + v_head_dim)",
                                   "kv_lora_rank", Cut::kColumn)},
    RoleRow{Role::kIndexerQ, linear("index_n_heads * index_head_dim", "q_lora_rank")},
    RoleRow{Role::kIndexerK, linear("index_head_dim", kHidden, Cut::kReplicated, Fuse::kIndexerK)},
    RoleRow{Role::kIndexerKNorm, {.out = "index_head_dim"}},
    RoleRow{Role::kIndexerWeights,
            {.fuse = Fuse::kIndexerK, .out = "index_n_heads", .in = kHidden}},
    RoleRow{Role::kRouter, {.out = "n_routed_experts", .in = kHidden}},
    RoleRow{Role::kRouterBias, {.out = "n_routed_experts"}},
    RoleRow{Role::kSharedRouter, {.out = "1", .in = kHidden}},
    RoleRow{Role::kExpertGate, linear(kExpertWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kExpertUp, linear(kExpertWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kExpertDown, linear(kHidden, kExpertWidth, Cut::kRow)},
    RoleRow{Role::kExpertsGateUp,
            linear("2 * moe_intermediate_size, 2 * intermediate_size", kHidden, Cut::kColumn)},
    RoleRow{Role::kExpertsDown, linear(kHidden, kExpertWidth, Cut::kRow)},
    RoleRow{Role::kSharedGate, linear(kSharedWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kSharedUp, linear(kSharedWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kSharedDown, linear(kHidden, kSharedWidth, Cut::kRow)},
    RoleRow{Role::kDenseGate, linear(kDenseWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kDenseUp, linear(kDenseWidth, kHidden, Cut::kColumn, Fuse::kGateUp)},
    RoleRow{Role::kDenseDown, linear(kHidden, kDenseWidth, Cut::kRow)},
};

}  // namespace

UsualRow usual_row(Role role) {
  const auto found = std::ranges::find(kUsualRows, role, &RoleRow::role);
  return found == kUsualRows.end() ? UsualRow{} : found->usual;
}

bool has_usual_shape(const UsualRow& usual) {
  const bool has_choice =
      usual.out.find(',') != std::string_view::npos || usual.in.find(',') != std::string_view::npos;
  return !has_choice && !usual.out.empty() && (!usual.is_linear || !usual.in.empty());
}

std::string usual_text(Role role) {
  const UsualRow usual = usual_row(role);
  std::vector<std::string> traits;
  if (usual.is_linear) traits.emplace_back("quantized: true");
  if (usual.cut != Cut::kReplicated)
    traits.push_back(fmt::format("cut: {}", kCutWords.at(static_cast<std::size_t>(usual.cut))));
  if (usual.fuse != Fuse::kNone)
    traits.push_back(fmt::format("fuse: {}", kFuseWords.at(static_cast<std::size_t>(usual.fuse))));
  if (has_usual_shape(usual)) {
    traits.push_back(
        fmt::format("shape: [{}{}{}]", usual.out, usual.in.empty() ? "" : ", ", usual.in));
  }
  return fmt::format("{}", fmt::join(traits, ", "));
}

}  // namespace ingot::formats
