#include "formats/family/usual_spellings.h"

#include <algorithm>
#include <array>
#include <vector>

#include "formats/base/words.h"
#include "formats/family/family_check.h"

namespace ingot::formats {
namespace {

/// The place of a word in a name.
enum class Place : std::uint8_t {
  kModel,
  kLayer,
  kAttention,
  kIndexer,
  kExpert,
  kStack,
  kShared,
  kDense,
  kDenseStack,      ///< [experts, ...], as the one matrix of a dense MLP is called
  kRecurrent,       ///< linear attention, state spaces, short convolutions
  kMixer,           ///< any of these, or attention, or an MLP
  kAttentionExpert  ///< experts of attention, which no family has
};

struct Spelling {
  std::string_view word;
  Place place;
  Role role;
  bool is_joint = false;
};

constexpr std::array kSpellings = {
    Spelling{"embed_tokens", Place::kModel, Role::kEmbedding},
    Spelling{"tok_embeddings", Place::kModel, Role::kEmbedding},
    Spelling{"word_embeddings", Place::kModel, Role::kEmbedding},
    Spelling{"embeddings", Place::kModel, Role::kEmbedding},
    Spelling{"embed", Place::kModel, Role::kEmbedding},
    Spelling{"wte", Place::kModel, Role::kEmbedding},
    Spelling{"lm_head", Place::kModel, Role::kHead},
    Spelling{"output", Place::kModel, Role::kHead},
    Spelling{"head", Place::kModel, Role::kHead},
    Spelling{"norm", Place::kModel, Role::kFinalNorm},
    Spelling{"norm_f", Place::kModel, Role::kFinalNorm},
    Spelling{"final_norm", Place::kModel, Role::kFinalNorm},
    Spelling{"final_layernorm", Place::kModel, Role::kFinalNorm},
    Spelling{"ln_f", Place::kModel, Role::kFinalNorm},
    Spelling{"input_layernorm", Place::kLayer, Role::kInputNorm},
    Spelling{"attention_norm", Place::kLayer, Role::kInputNorm},
    Spelling{"attn_norm", Place::kLayer, Role::kInputNorm},
    Spelling{"ln_1", Place::kLayer, Role::kInputNorm},
    Spelling{"post_attention_layernorm", Place::kLayer, Role::kPostAttentionNorm},
    Spelling{"ffn_norm", Place::kLayer, Role::kPostAttentionNorm},
    Spelling{"ln_2", Place::kLayer, Role::kPostAttentionNorm},
    Spelling{"embed_tokens", Place::kLayer, Role::kMtpEmbedding},
    Spelling{"enorm", Place::kLayer, Role::kMtpEmbeddingNorm},
    Spelling{"hnorm", Place::kLayer, Role::kMtpHiddenNorm},
    Spelling{"eh_proj", Place::kLayer, Role::kMtpProj},
    Spelling{"head", Place::kLayer, Role::kMtpHead},
    Spelling{"embedding_norm", Place::kModel, Role::kFinalNorm},
    Spelling{"qkv_proj", Place::kAttention, Role::kQProj, true},
    Spelling{"Wqkv", Place::kAttention, Role::kQProj, true},
    Spelling{"wqkv", Place::kAttention, Role::kQProj, true},
    Spelling{"query_key_value", Place::kAttention, Role::kQProj, true},
    Spelling{"qkv", Place::kAttention, Role::kQProj, true},
    Spelling{"c_attn", Place::kAttention, Role::kQProj, true},
    Spelling{"kv_proj", Place::kAttention, Role::kKProj, true},
    Spelling{"gate_proj", Place::kAttention, Role::kAttentionGate},
    Spelling{"g_proj", Place::kAttention, Role::kAttentionGate},
    Spelling{"output_gate", Place::kAttention, Role::kAttentionGate},
    Spelling{"linear_gate", Place::kAttention, Role::kAttentionGate},
    Spelling{"dense", Place::kAttention, Role::kOProj},
    Spelling{"c_proj", Place::kAttention, Role::kOProj},
    Spelling{"in_proj", Place::kRecurrent, Role::kLinearAttentionIn},
    Spelling{"in_proj_qkv", Place::kRecurrent, Role::kLinearAttentionIn},
    Spelling{"in_proj_qkvz", Place::kRecurrent, Role::kLinearAttentionIn},
    Spelling{"in_proj_z", Place::kRecurrent, Role::kLinearAttentionIn},
    Spelling{"in_proj_a", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"in_proj_b", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"in_proj_ba", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"x_proj", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"dt_proj", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"out_proj", Place::kRecurrent, Role::kLinearAttentionOut},
    Spelling{"conv1d", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"conv", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"A_log", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"D", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"dt_bias", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"norm", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"dt_layernorm", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"b_layernorm", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"c_layernorm", Place::kRecurrent, Role::kLinearAttentionState},
    Spelling{"q_proj", Place::kAttention, Role::kQProj},
    Spelling{"wq", Place::kAttention, Role::kQProj},
    Spelling{"k_proj", Place::kAttention, Role::kKProj},
    Spelling{"wk", Place::kAttention, Role::kKProj},
    Spelling{"v_proj", Place::kAttention, Role::kVProj},
    Spelling{"wv", Place::kAttention, Role::kVProj},
    Spelling{"o_proj", Place::kAttention, Role::kOProj},
    Spelling{"wo", Place::kAttention, Role::kOProj},
    Spelling{"out_proj", Place::kAttention, Role::kOProj},
    Spelling{"q_a_proj", Place::kAttention, Role::kQaProj},
    Spelling{"wq_a", Place::kAttention, Role::kQaProj},
    Spelling{"q_b_proj", Place::kAttention, Role::kQbProj},
    Spelling{"wq_b", Place::kAttention, Role::kQbProj},
    Spelling{"kv_a_proj_with_mqa", Place::kAttention, Role::kKvaProj},
    Spelling{"wkv_a", Place::kAttention, Role::kKvaProj},
    Spelling{"kv_b_proj", Place::kAttention, Role::kKvbProj},
    Spelling{"wkv_b", Place::kAttention, Role::kKvbProj},
    Spelling{"q_norm", Place::kAttention, Role::kQNorm},
    Spelling{"q_layernorm", Place::kAttention, Role::kQNorm},
    Spelling{"query_layernorm", Place::kAttention, Role::kQNorm},
    Spelling{"k_norm", Place::kAttention, Role::kKNorm},
    Spelling{"k_layernorm", Place::kAttention, Role::kKNorm},
    Spelling{"key_layernorm", Place::kAttention, Role::kKNorm},
    Spelling{"q_a_layernorm", Place::kAttention, Role::kQaNorm},
    Spelling{"kv_a_layernorm", Place::kAttention, Role::kKvaNorm},
    Spelling{"sinks", Place::kAttention, Role::kAttentionSinks},
    Spelling{"wq_b", Place::kIndexer, Role::kIndexerQ},
    Spelling{"wk", Place::kIndexer, Role::kIndexerK},
    Spelling{"k_norm", Place::kIndexer, Role::kIndexerKNorm},
    Spelling{"weights_proj", Place::kIndexer, Role::kIndexerWeights},
    Spelling{"gate_proj", Place::kExpert, Role::kExpertGate},
    Spelling{"w1", Place::kExpert, Role::kExpertGate},
    Spelling{"up_proj", Place::kExpert, Role::kExpertUp},
    Spelling{"w3", Place::kExpert, Role::kExpertUp},
    Spelling{"down_proj", Place::kExpert, Role::kExpertDown},
    Spelling{"w2", Place::kExpert, Role::kExpertDown},
    Spelling{"gate_up_proj", Place::kStack, Role::kExpertsGateUp},
    Spelling{"down_proj", Place::kStack, Role::kExpertsDown},
    Spelling{"w13_weight", Place::kStack, Role::kExpertsGateUp},
    Spelling{"w2_weight", Place::kStack, Role::kExpertsDown},
    Spelling{"input_linear", Place::kDenseStack, Role::kExpertsGateUp},
    Spelling{"output_linear", Place::kDenseStack, Role::kExpertsDown},
    Spelling{"gate_up_proj", Place::kDense, Role::kDenseGate, true},
    Spelling{"input_linear", Place::kDense, Role::kDenseGate, true},
    Spelling{"output_linear", Place::kDense, Role::kDenseDown},
    Spelling{"fc1", Place::kDense, Role::kDenseUp},
    Spelling{"fc2", Place::kDense, Role::kDenseDown},
    Spelling{"c_fc", Place::kDense, Role::kDenseUp},
    Spelling{"dense_h_to_4h", Place::kDense, Role::kDenseUp},
    Spelling{"c_proj", Place::kDense, Role::kDenseDown},
    Spelling{"dense_4h_to_h", Place::kDense, Role::kDenseDown},
    Spelling{"gate_up_proj", Place::kShared, Role::kSharedGate, true},
    Spelling{"input_linear", Place::kShared, Role::kSharedGate, true},
    Spelling{"output_linear", Place::kShared, Role::kSharedDown},
    Spelling{"gate_proj", Place::kShared, Role::kSharedGate},
    Spelling{"w1", Place::kShared, Role::kSharedGate},
    Spelling{"up_proj", Place::kShared, Role::kSharedUp},
    Spelling{"w3", Place::kShared, Role::kSharedUp},
    Spelling{"down_proj", Place::kShared, Role::kSharedDown},
    Spelling{"w2", Place::kShared, Role::kSharedDown},
    Spelling{"shared_expert_gate", Place::kShared, Role::kSharedRouter},
    Spelling{"gate_proj", Place::kDense, Role::kDenseGate},
    Spelling{"w1", Place::kDense, Role::kDenseGate},
    Spelling{"up_proj", Place::kDense, Role::kDenseUp},
    Spelling{"w3", Place::kDense, Role::kDenseUp},
    Spelling{"down_proj", Place::kDense, Role::kDenseDown},
    Spelling{"w2", Place::kDense, Role::kDenseDown},
    Spelling{"gate", Place::kDense, Role::kRouter},
    Spelling{"router", Place::kDense, Role::kRouter},
    Spelling{"layer", Place::kDense, Role::kRouter},
    Spelling{"e_score_correction_bias", Place::kDense, Role::kRouterBias},
    Spelling{"expert_bias", Place::kDense, Role::kRouterBias},
};

/// The outputs of several matrices in one, by the role of the first.
struct JoinedWidths {
  Role role;
  std::string_view out;
};
constexpr std::array kJoinedWidths = {
    JoinedWidths{Role::kQProj,
                 "num_attention_heads * head_dim + 2 * num_key_value_heads * head_dim, "
                 "num_attention_heads * head_dim + 2 * attn_config.kv_n_heads * head_dim, "
                 "3 * num_attention_heads * head_dim"},
    JoinedWidths{Role::kKProj,
                 "2 * num_key_value_heads * head_dim, 2 * num_key_value_heads * kv_channels"},
    JoinedWidths{Role::kDenseGate, "2 * intermediate_size"},
    JoinedWidths{Role::kSharedGate, "2 * shared_intermediate_size"},
};

Place place_of(std::string_view pattern, const std::vector<std::string_view>& words) {
  const auto any = [&](const auto& is) { return std::ranges::any_of(words, is); };
  const auto has = [](std::string_view part) {
    return [part](std::string_view word) { return word.find(part) != std::string_view::npos; };
  };
  if (!has_mark(pattern, kLayerMark) && !has_mark(pattern, kMtpMark)) return Place::kModel;
  if (has_mark(pattern, kExpertMark)) return Place::kExpert;
  if (any(has("shared_expert")) || any(has("share_expert")) || any(has("shared_mlp")))
    return Place::kShared;
  if (any([](std::string_view word) { return word == "indexer"; })) return Place::kIndexer;
  if (any([](std::string_view word) {
        return word == "mamba" || word == "ssm" || word == "conv" || word == "linear_attn";
      }))
    return Place::kRecurrent;
  if (any([](std::string_view word) { return word == "mixer"; })) return Place::kMixer;
  // Norms before attention have `attention` in their names too.
  const bool is_of_attention = any([](std::string_view word) {
    return word == "attn" || word.ends_with("_attn") || word.ends_with("attention");
  });
  if (any([](std::string_view word) { return word == "experts"; }))
    return is_of_attention ? Place::kAttentionExpert : Place::kStack;
  if (is_of_attention) return Place::kAttention;
  if (any(has("mlp")) || any(has("feed_forward")) || any(has("ffn")) || any(has("moe")) ||
      any(has("router")))
    return Place::kDense;
  return Place::kLayer;
}

/// Null where a word has no usual meaning there.
const Spelling* spelling_at(std::string_view word, Place place) {
  const auto found = std::ranges::find_if(kSpellings, [&](const Spelling& spelling) {
    return spelling.word == word && spelling.place == place;
  });
  return found == kSpellings.end() ? nullptr : &*found;
}

/// Other places in which a word of this place may have its meaning, in this order.
std::vector<Place> places_like(Place place, std::size_t n_sides) {
  using enum Place;
  switch (place) {
    case kModel:
      return {};
    case kAttention:
    case kIndexer:
    case kRecurrent:
      return {kLayer};
    case kStack:
    case kAttentionExpert:
      // Routers are there, and no MLPs.
      return {kLayer};
    case kMixer:
      return {kRecurrent, kAttention, kDense, kLayer};
    default:
      return n_sides == 3 ? std::vector{kDenseStack, kDense, kLayer} : std::vector{kDense, kLayer};
  }
}

bool is_of_router(const Spelling& spelling) {
  return spelling.role == Role::kRouter || spelling.role == Role::kRouterBias;
}

}  // namespace

std::string_view behind_layer(std::string_view pattern) {
  for (const std::string_view mark : {kLayerMark, kMtpMark}) {
    if (const std::size_t at = pattern.find(mark); at != std::string_view::npos)
      return pattern.substr(at + mark.size());
  }
  return pattern;
}

UsualSpelling usual_spelling(std::string_view pattern, std::size_t n_sides) {
  std::vector<std::string_view> words = name_words(pattern);
  const bool is_bias = words.back() == "bias";
  if (words.size() > 1 && (is_bias || words.back() == "weight")) words.pop_back();
  const Place place = place_of(pattern, words);
  const std::string_view word = words.back();
  const Spelling* found = nullptr;
  if (place == Place::kDense && n_sides == 3) found = spelling_at(word, Place::kDenseStack);
  if (found == nullptr) found = spelling_at(word, place);
  // One matrix for the experts of a layer is no matrix of any of them.
  if (place == Place::kStack && n_sides < 3) found = nullptr;
  if (found == nullptr && (place == Place::kStack || place == Place::kAttentionExpert)) {
    const Spelling* router = spelling_at(word, Place::kDense);
    if (router != nullptr && is_of_router(*router)) found = router;
  }
  for (const Place other : places_like(place, n_sides)) {
    if (found == nullptr) found = spelling_at(word, other);
  }
  UsualSpelling spelling;
  if (found != nullptr) spelling = {.role = found->role, .is_joint = found->is_joint};
  Role& role = spelling.role;
  const std::string_view module = words.size() > 1 ? words[words.size() - 2] : std::string_view();
  if (module == "shared_head" && word == "norm") role = Role::kMtpHeadNorm;
  if (module == "router" && word == "proj") role = Role::kRouter;
  if (is_bias) {
    const bool is_of_attention = place == Place::kAttention && usual_row(role).is_linear;
    role = is_of_attention                       ? Role::kAttentionBias
           : role == Role::kRouter               ? Role::kRouterBias
           : role == Role::kLinearAttentionState ? role
           : is_norm(role)                       ? role
                                                 : Role::kOther;
  }
  spelling.is_known = role != Role::kOther;
  return spelling;
}

bool is_called_stack(std::string_view pattern) {
  const std::vector<std::string_view> words = name_words(pattern);
  const Place place = place_of(pattern, words);
  return place == Place::kStack || place == Place::kAttentionExpert;
}

std::span<const SingleExpert> usual_singles(std::string_view stack) {
  static constexpr std::array kGateUp = {SingleExpert{"gate_proj", Role::kExpertGate},
                                         SingleExpert{"up_proj", Role::kExpertUp}};
  static constexpr std::array kDown = {SingleExpert{"down_proj", Role::kExpertDown}};
  static constexpr std::array kInput = {SingleExpert{"w1", Role::kExpertGate},
                                        SingleExpert{"w3", Role::kExpertUp}};
  static constexpr std::array kOutput = {SingleExpert{"w2", Role::kExpertDown}};
  if (stack == "gate_up_proj" || stack == "w13_weight") return kGateUp;
  if (stack == "down_proj" || stack == "w2_weight") return kDown;
  if (stack == "input_linear") return kInput;
  if (stack == "output_linear") return kOutput;
  return {};
}

std::string_view stem_of(std::string_view name) {
  constexpr std::string_view kWeight = ".weight";
  if (name.ends_with(kWeight)) name.remove_suffix(kWeight.size());
  return name;
}

std::string_view module_of(std::string_view name) {
  const std::string_view stem = stem_of(name);
  return stem.substr(0, stem.rfind('.') + 1);
}

bool is_bias_name(std::string_view name) {
  return name.ends_with(".bias") || name.ends_with("_bias");
}

bool is_of_recurrence(Role role) {
  return role == Role::kLinearAttentionIn || role == Role::kLinearAttentionOut ||
         role == Role::kLinearAttentionState;
}

UsualRow usual_row(const UsualSpelling& spelling) {
  UsualRow usual = usual_row(spelling.role);
  if (!spelling.is_joint) return usual;
  usual.cut = Cut::kReplicated;
  usual.fuse = Fuse::kNone;
  const auto joined = std::ranges::find(kJoinedWidths, spelling.role, &JoinedWidths::role);
  usual.out = joined == kJoinedWidths.end() ? std::string_view() : joined->out;
  return usual;
}

}  // namespace ingot::formats
