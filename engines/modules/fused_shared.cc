#include <algorithm>
#include <array>
#include <string_view>

#include "engines/modules/modules.h"
#include "formats/base/words.h"
#include "formats/dialect/modelopt.h"
#include "formats/json/json.h"

namespace ingot::engines {

using formats::json_member;
using formats::ModelConfig;
using formats::strings_at;
using formats::text_at;

namespace {

/// A quantization config for which a class fuses nothing.
enum class Spared : std::uint8_t {
  kNone,
  kPlainInFp4,     ///< ModelOpt's NVFP4 whose list names shared experts
  kOfDeepSeek,     ///< kPlainInFp4, and INT4 of compressed-tensors as target `Linear`
  kMixedModelopt,  ///< ModelOpt with several algorithms
  kOfBailing,      ///< one kind in the ignore list of compressed-tensors; cut blocks of FP8
};

constexpr FusedLayers kInModel = {.in_model = true, .in_draft = false};
constexpr FusedLayers kInDraft = {.in_model = false, .in_draft = true};
constexpr FusedLayers kInBoth = {.in_model = true, .in_draft = true};

struct FusingClass {
  std::string_view architecture;  ///< first architecture of config.json
  FusedLayers layers;
  std::uint64_t n_routed = 0;  ///< 0: any number
  Spared spared = Spared::kNone;
  bool has_equal_widths = false;  ///< widths of shared and routed experts have to be equal
};

// models/deepseek_v2.py:3325, deepseek_common/utils.py:146, glm4_moe.py:1012, glm4_moe_lite.py:732,
// glm4v_moe.py:87, glm5_next.py:1352, minimax_m3.py:2023, dots3_common/modeling.py:1628,
// qwen2_moe.py:137, bailing_moe_v3.py:1429. Kimi K2 has the first class and 384 experts.
// configs/model_config.py:1032 gives a draft its class: that of V3 for V3.2 too
// (deepseek_nextn.py:250), none for GLM-4.5V and MiniMax-M3; the one of GLM-5-Next asks for the
// name of V3's draft, which it has not.
constexpr std::array kClasses = {
    FusingClass{"DeepseekV3ForCausalLM", kInBoth, 256, Spared::kOfDeepSeek},
    FusingClass{"DeepseekV32ForCausalLM", kInDraft, 256, Spared::kOfDeepSeek},
    FusingClass{"GlmMoeDsaForCausalLM", kInBoth, 256, Spared::kOfDeepSeek},
    FusingClass{"Glm4MoeForCausalLM", kInBoth},
    FusingClass{"Glm4MoeLiteForCausalLM", kInBoth},
    FusingClass{"Glm4vMoeForConditionalGeneration", kInModel},
    FusingClass{"Glm5NextForConditionalGeneration", kInModel, 0, Spared::kPlainInFp4},
    FusingClass{"MiniMaxM3SparseForCausalLM", kInModel, 0, Spared::kMixedModelopt},
    FusingClass{"MiniMaxM3SparseForConditionalGeneration", kInModel, 0, Spared::kMixedModelopt},
    FusingClass{"Dots3NoteForCausalLM", kInBoth, 256},
    FusingClass{"Qwen3NextForCausalLM", kInBoth, 0, Spared::kPlainInFp4, true},
    FusingClass{"BailingMoeV3ForCausalLM", kInBoth, 0, Spared::kOfBailing, true},
};

const FusingClass* find_fusing_class(const ModelConfig& config) {
  const auto* const row =
      std::ranges::find(kClasses, config.architecture, &FusingClass::architecture);
  if (row == kClasses.end()) return nullptr;
  if (row->n_routed != 0 && row->n_routed != config.n_routed_experts) return nullptr;
  const bool has_one = row->has_equal_widths
                           ? config.shared_intermediate_size != 0 &&
                                 config.shared_intermediate_size == config.moe_intermediate_size
                           : config.n_shared_experts == 1;
  return has_one ? row : nullptr;
}

/// True if a list of ModelOpt's NVFP4 has an entry with the words of a shared expert: its gate is
/// apart (modelopt_quant.py:1552).
bool lists_shared_experts(const Checkpoint& checkpoint, const EngineInput& input) {
  const auto lists = [&](const Json& body) {
    const std::string algo = upper_case(text_at(body, "quant_algo"));
    const formats::StorageRow* row = find_storage(checkpoint.dialect(), algo);
    if (row == nullptr || row->scheme != SchemeId::kNvfp4) return false;
    constexpr std::array kKeys = {"exclude_modules", "modules_to_not_convert", "ignore"};
    return std::ranges::any_of(kKeys, [&](const char* key) {
      return std::ranges::any_of(strings_at(body, key), [](const std::string& entry) {
        return entry.find("shared_expert") != std::string::npos &&
               entry.find("shared_expert_gate") == std::string::npos;
      });
    });
  };
  return (input.quantization != nullptr && lists(formats::modelopt_body(*input.quantization))) ||
         lists(formats::modelopt_body(checkpoint.description()));
}

/// compressed_tensors.py:508 and :521.
bool has_int4_linears(const EngineInput& input) {
  if (!input.groups) return false;
  const formats::ConfigGroup* linears = input.groups->exact_target("Linear");
  return linears != nullptr && linears->scheme == SchemeId::kInt4Group &&
         !linears->has_zero_points && text_at(*input.quantization, "format") == "pack-quantized";
}

/// bailing_moe_v3.py:1466 and :1491, of one rank.
bool is_spared_by_bailing(const Checkpoint& checkpoint, const EngineInput& input) {
  if (input.groups && input.groups->ignore_matches("model.layers.0.mlp.shared_experts.gate_proj") !=
                          input.groups->ignore_matches("model.layers.0.mlp.experts.0.gate_proj"))
    return true;
  if (input.quantization == nullptr || text_at(*input.quantization, "quant_method") != "fp8")
    return false;
  const auto& said = checkpoint.config().quantization;
  return said && said->weight_block_size &&
         std::ranges::any_of(*said->weight_block_size, [&](std::uint64_t n) {
           return n != 0 && checkpoint.config().moe_intermediate_size % n != 0;
         });
}

bool is_spared(Spared spared, const Checkpoint& checkpoint, const EngineInput& input) {
  switch (spared) {
    case Spared::kNone:
      return false;
    case Spared::kPlainInFp4:
      return lists_shared_experts(checkpoint, input);
    case Spared::kOfDeepSeek:
      return lists_shared_experts(checkpoint, input) || has_int4_linears(input);
    case Spared::kMixedModelopt:
      return input.quantization != nullptr &&
             upper_case(text_at(*input.quantization, "quant_algo")) == formats::kModeloptMixed;
    case Spared::kOfBailing:
      return is_spared_by_bailing(checkpoint, input);
  }
  return false;
}

}  // namespace

FusedLayers fusible_layers(const ModelConfig& config) {
  const FusingClass* row = find_fusing_class(config);
  return row == nullptr ? FusedLayers{} : row->layers;
}

FusedLayers fused_layers(const Checkpoint& checkpoint, const EngineInput& input) {
  const FusingClass* row = find_fusing_class(checkpoint.config());
  if (row == nullptr || is_spared(row->spared, checkpoint, input)) return {};
  return row->layers;
}

}  // namespace ingot::engines
