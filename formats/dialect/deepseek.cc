#include <algorithm>
#include <set>
#include <string_view>

#include "formats/base/error.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/family/families.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/module_list.h"
#include "formats/modules/mtp_names.h"

// Native DeepSeek FP8 as released: docs/formats.md, "config.json quantization block".

namespace ingot::formats {
namespace {

using enum DType;
using enum PartShape;

constexpr std::array kInt8BlockParts = {codes_part(kI8),
                                        scale_part(kF32, kGrid, ".weight_scale_inv")};
// Releases of Mistral: the names of transformers, which loaders of other models do not know.
constexpr std::array kOfMistralParts = {codes_part(kF8E4M3),
                                        scale_part(kF32, kScalar, ".weight_scale_inv"),
                                        input_part(kScalar, ".activation_scale")};
using enum Activations;
constexpr std::array kDeepseekStorage = {
    with_experts(ExpertForm::kEither, {SchemeId::kFp8Block, kDynamic, "fp8", kReleasedFp8Parts}),
    // No dimensions: SGLang joins q_a and kv_a, and asserts on two scales of shape [1].
    StorageRow{SchemeId::kFp8Tensor, kDynamic, "fp8", without_inputs(kScalarFp8Parts)},
    with_experts(ExpertForm::kEither,
                 kept_only({SchemeId::kFp8Tensor, kStatic, "fp8", kOfMistralParts})),
    // vLLM's own names, of older releases.
    kept_only({SchemeId::kFp8Tensor, kStatic, "fp8", kScalarFp8Parts}),
    StorageRow{SchemeId::kInt8Block, kDynamic, "blockwise_int8", kInt8BlockParts},
};

// DeepSeek-V4, as DeepSeek releases it, and as NVIDIA does with experts in NVFP4.
constexpr std::array kNativeFp8Parts = {
    codes_part(kF8E4M3),
    // Base models have F32.
    PartRow{Part::kScale, ".scale", kF8E8M0, kGrid, false, /*keeps_dtype=*/true},
};
constexpr std::array kNativeMxfp4Parts = {codes_part(kI8), scale_part(kF8E8M0, kGrid, ".scale")};
constexpr std::array kNativeStorage = {
    StorageRow{SchemeId::kFp8Block, kDynamic, "fp8", kNativeFp8Parts},
    StorageRow{SchemeId::kMxfp4, kWeightOnly, "", kNativeMxfp4Parts},
    StorageRow{SchemeId::kNvfp4, kStatic, "NVFP4", kNvidiaNvfp4Parts},
};

// Routed experts in MXFP4 next to FP8 blocks, in the words of Ling (kExpertMethod), or of MiMo
// and Step (kStoreDtype). vLLM reads the latter in any architecture.
constexpr std::string_view kMethodScale = ".weight_scale_inv";
constexpr std::array kMethodMxfp4Parts = {
    codes_part(kU8), PartRow{Part::kScale, kMethodScale, kF8E8M0, kGrid, false, true}};
constexpr std::array kStoredMxfp4Parts = {codes_part(kU8), scale_part(kU8, kGrid)};
constexpr StorageRow kMethodMxfp4{SchemeId::kMxfp4, kWeightOnly, kMxfp4Word, kMethodMxfp4Parts};
constexpr StorageRow kStoredMxfp4{SchemeId::kMxfp4, kWeightOnly, kMxfp4Word, kStoredMxfp4Parts};
constexpr std::array kMethodFirst = {kMethodMxfp4, kStoredMxfp4};
constexpr std::array kStoredFirst = {kStoredMxfp4, kMethodMxfp4};

std::span<const StorageRow> expert_storage(const Family& family) {
  return family.name == "bailing_hybrid" ? kMethodFirst : kStoredFirst;
}

constexpr const char* kScaleFormat = "scale_fmt";

// Keys by which NVIDIA's releases of DeepSeek-V4 describe NVFP4 experts, next to those of FP8.
constexpr std::array<std::string_view, 8> kExpertKeys = {
    "config_groups",  "group_size", "ignore",   "kv_cache_quant_algo",
    "moe_quant_algo", "quant_algo", "producer", "quantized_layers"};

/// The one way in which this dialect's engines take quantized weights.
struct NativeBlock {
  QuantizationGroup group;  ///< `block` is {0, 0} where a tensor has one scale
  /// Packed weights that no row of the dialect has, which only the source's own block describes.
  bool has_foreign = false;
};

std::string_view native_method(const NativeBlock& native) {
  return find_storage(kDeepseekDialect, native.group.scheme)->config_name;
}

bool is_static(const NativeBlock& native) {
  return native.group.activations == kStatic;
}

bool is_native_scheme(SchemeId scheme) {
  return std::ranges::find(kNativeStorage, scheme, &StorageRow::scheme) != kNativeStorage.end();
}

/// True if weights are written under DeepSeek's native names: the family has these, or the parts
/// say so.
bool has_native_names(const WrittenModel& model) {
  const Family* family = family_of(model.source);
  if (family != nullptr && is_native(kDeepseekDialect, *family)) return true;
  return std::ranges::any_of(model.tensors, [](const WrittenTensor& tensor) {
    return std::ranges::any_of(tensor.stored,
                               [](const std::string& name) { return name.ends_with(".scale"); });
  });
}

/// True if weights are MXFP4, and they are routed experts in another family than DeepSeek-V4.
bool has_mxfp4_experts(const WrittenModel& model) {
  const auto is_other = [](const WrittenTensor& tensor) {
    return tensor.scheme == SchemeId::kMxfp4 && !is_routed_expert(role_of(tensor.rule));
  };
  return !has_native_names(model) && std::ranges::none_of(model.tensors, is_other) &&
         std::ranges::find(model.tensors, SchemeId::kMxfp4, &WrittenTensor::scheme) !=
             model.tensors.end();
}

NativeBlock native_block(const WrittenModel& model) {
  std::optional<QuantizationGroup> found;
  bool has_foreign = false;
  const bool has_native = has_native_names(model);
  for (const QuantizationGroup& group : written_groups(model).groups) {
    if (find_storage(kDeepseekDialect, group.scheme) == nullptr) {
      const bool is_known = (group.scheme == SchemeId::kMxfp4 && has_mxfp4_experts(model)) ||
                            (has_native && is_native_scheme(group.scheme));
      has_foreign = has_foreign || !is_known;
      continue;
    }
    if (found && *found != group) {
      throw Error(ErrorCode::kUnsupported,
                  "dialect deepseek holds one scheme only, in blocks of one size (give all "
                  "weights one scheme, or take compressed-tensors)");
    }
    found = group;
  }
  const QuantizationGroup released = {.scheme = SchemeId::kFp8Block,
                                      .activations = kDynamic,
                                      .block = fp8_block_size(model.source)};
  return {.group = found.value_or(released), .has_foreign = has_foreign};
}

/// The kind of FP8 codes, and the word for it that engines know as well.
constexpr const char* kCodeFormat = "fmt";
constexpr std::string_view kE4m3 = "e4m3", kLongE4m3 = "float8_e4m3fn";

Json standard_block(const NativeBlock& native) {
  Json block = {{"activation_scheme", is_static(native) ? "static" : "dynamic"}};
  if (native.group.scheme != SchemeId::kInt8Block) block[kCodeFormat] = kE4m3;
  block["quant_method"] = native_method(native);
  return block;
}

/// The source's block where it still holds, else null.
const Json* kept_block(const WrittenModel& model, const NativeBlock& native) {
  const Json* block = source_block(model.source, kDeepseekDialect);
  if (block == nullptr) return nullptr;
  const QuantizationConfig& source = *model.source.quantization;
  const bool has_size = native.group.scheme == SchemeId::kFp8Tensor
                            ? !source.weight_block_size
                            : fp8_block_size(model.source) == native.group.block;
  const bool holds = source.quant_method == native_method(native) && has_size &&
                     (source.activation_scheme == "static") == is_static(native);
  return holds ? block : nullptr;
}

/// Modules that releases need not name but our lists do: plain linear layers of towers for images
/// and sound, and modules of Silence::kListed; sorted.
std::vector<std::string> unlisted_modules(std::span<const WrittenTensor> written) {
  std::vector<std::string> modules;
  for (const WrittenTensor& tensor : written) {
    if (tensor.rule == nullptr || scheme_facts(tensor.scheme).quantized) continue;
    const bool is_tower = tensor.rule->role == Role::kOtherModality && tensor.rank == 2 &&
                          module_name(tensor.name) != tensor.name;
    if (is_tower || tensor.rule->silence == Silence::kListed)
      modules.emplace_back(module_name(tensor.name));
  }
  std::ranges::sort(modules);
  return modules;
}

/// transformers leaves the model's head plain by itself only as long as it finds no list.
std::vector<std::string> heads_of(const ModelConfig& source) {
  std::vector<std::string> heads;
  const Family* family = family_of(source);
  if (family == nullptr) return heads;
  for (const TensorRule& rule : family->rules) {
    if (rule.silence == Silence::kHead && rule.scope == Scope::kModel)
      heads.push_back(stored_text_name(module_name(rule.pattern), source.text));
  }
  return heads;
}

/// Names by which only SGLang 0.5.23 finds plain modules: those of draft models, and the fused q_a
/// and kv_a, which it takes apart only in the lists of FP8 main models (models/deepseek_v2.py:3266,
/// layers/quantization/blockwise_int8.py:111).
std::vector<std::string> names_of_drafts(const ModelConfig& source, SchemeId scheme,
                                         std::span<const std::string> modules) {
  constexpr std::string_view kLast = "kv_a_proj_with_mqa";
  std::vector<std::string> names;
  for (const std::string& module : modules) {
    std::string draft = mtp_names(module, source.num_hidden_layers).draft;
    const bool is_draft = !draft.empty();
    if (module.ends_with(kLast) && (is_draft || scheme == SchemeId::kInt8Block)) {
      const std::string& name = is_draft ? draft : module;
      names.push_back(name.substr(0, name.size() - kLast.size()) + "fused_qkv_a_proj_with_mqa");
    }
    if (is_draft) names.push_back(std::move(draft));
  }
  return names;
}

/// Engines have one module for the routed experts of a layer; transformers asks for no other name.
std::vector<std::string> with_joined_experts(std::vector<std::string> modules,
                                             std::span<const WrittenTensor> written) {
  std::set<std::string_view> quantized;
  for (const WrittenTensor& tensor : written) {
    if (scheme_facts(tensor.scheme).quantized) quantized.insert(experts_of(tensor.name));
  }
  for (std::string& module : modules) {
    const std::string_view experts = experts_of(module);
    if (!experts.empty() && !quantized.contains(experts)) module.resize(experts.size());
  }
  sort_unique(modules);
  return modules;
}

/// The entries of a source's list that name nothing which is quantized now.
std::vector<std::string> still_plain(std::vector<std::string> entries, const WrittenModel& model) {
  std::set<std::string, std::less<>> plain(entries.begin(), entries.end());
  for (const WrittenTensor& tensor : model.tensors) {
    if (!scheme_facts(tensor.scheme).quantized) continue;
    for (std::string name : module_aliases(module_name(tensor.name), model.source.text)) {
      for (; !name.empty(); name.resize(std::min(name.rfind('.'), name.size()))) {
        plain.erase(name);
        if (name.find('.') == std::string::npos) break;
      }
    }
  }
  std::erase_if(entries, [&](const std::string& entry) { return !plain.contains(entry); });
  return entries;
}

/// The values of kExpertKeys; empty where no expert is NVFP4.
Json expert_block(const WrittenModel& model) {
  const std::uint64_t n_layers = model.source.num_hidden_layers;
  const Json algo = {{"group_size", scheme_facts(SchemeId::kNvfp4).group_cols},
                     {"quant_algo", "NVFP4"}};
  Json layers = Json::object();
  bool has_other_mtp = false;
  for (const WrittenTensor& tensor : model.tensors) {
    const bool is_nvfp4 = tensor.scheme == SchemeId::kNvfp4;
    const bool is_mtp = tensor.layer && *tensor.layer >= n_layers;
    has_other_mtp = has_other_mtp || (is_mtp && !is_nvfp4 && scheme_facts(tensor.scheme).quantized);
    if (is_nvfp4) layers[std::string(experts_of(tensor.name))] = algo;
  }
  if (layers.empty()) return Json::object();
  Json ignore = {"*.attn.*", "*.ffn.shared_experts.*", "head"};
  if (has_other_mtp) ignore.push_back("mtp.*");
  const Json numbers = {{"dynamic", false}, {"group_size", 16}, {"num_bits", 4}, {"type", "float"}};
  return {{"config_groups",
           {{"group_0",
             {{"input_activations", numbers}, {"targets", {"Linear"}}, {"weights", numbers}}}}},
          {"group_size", 16},
          {"ignore", std::move(ignore)},
          {"kv_cache_quant_algo", nullptr},
          {"moe_quant_algo", "NVFP4"},
          {"producer", {{"name", "modelopt"}, {"version", "dsv4-nvfp4-experts"}}},
          {"quant_algo", "MIXED_PRECISION"},
          {"quantized_layers", std::move(layers)}};
}

/// Requires that all weights of another scheme than FP8 are routed experts; engines know one scheme
/// for all main layers.
void require_experts(const WrittenModel& model) {
  const WrittenTensor* first = nullptr;
  for (const WrittenTensor& tensor : model.tensors) {
    if (tensor.rule == nullptr) continue;
    const bool is_expert = is_routed_expert(tensor.rule->role);
    const std::string_view scheme = scheme_facts(tensor.scheme).name;
    if (!is_expert && find_storage(kDeepseekDialect, tensor.scheme) == nullptr &&
        is_native_scheme(tensor.scheme)) {
      throw Error(ErrorCode::kUnsupported,
                  "is no routed expert, and dialect deepseek has {} for nothing else (give it fp8 "
                  "with --rule)",
                  scheme)
          .in_tensor(tensor.name);
    }
    const bool is_main = !tensor.layer || *tensor.layer < model.source.num_hidden_layers;
    if (!is_expert || !is_main || !scheme_facts(tensor.scheme).quantized) continue;
    if (first == nullptr) first = &tensor;
    if (first->scheme == tensor.scheme) continue;
    throw Error(ErrorCode::kUnsupported,
                "is {}, '{}' is {}: engines know one scheme for all routed experts (give them one "
                "with --rule role:expert-gate,...)",
                scheme, first->name, scheme_facts(first->scheme).name)
        .in_tensor(tensor.name);
  }
}

/// Keys about experts are derived: a source's keys describe only its own tensors. Where it has
/// weights that nothing else describes, its keys are kept.
void state_experts(const WrittenModel& model, const NativeBlock& native, Json& block) {
  const bool has_native = has_native_names(model);
  const Json derived = has_native ? expert_block(model) : Json::object();
  const bool is_said = block.contains("quant_algo") || block.contains("moe_quant_algo");
  if (native.has_foreign || (derived.empty() && !is_said)) return;
  for (const std::string_view key : kExpertKeys) {
    const auto value = derived.find(key);
    if (value == derived.end()) {
      block.erase(key);
    } else if (!block.contains(key) || nlohmann::json(block[key]) != nlohmann::json(*value)) {
      block[key] = *value;
    }
  }
}

/// Says by the key of their names that routed experts are MXFP4. A source's word about other
/// weights is kept as long as there are any.
void state_mxfp4_experts(const WrittenModel& model, Json& block) {
  const auto found = std::ranges::find(model.tensors, SchemeId::kMxfp4, &WrittenTensor::scheme);
  const bool has_experts = has_mxfp4_experts(model);
  if (has_experts || has_native_names(model)) require_experts(model);
  if (found != model.tensors.end() && !has_experts) return;
  const bool is_by_method =
      has_experts && std::ranges::any_of(found->stored, [](const std::string& name) {
        return name.ends_with(kMethodScale);
      });
  for (const char* key : {kExpertMethod, kStoreDtype}) {
    if (!has_experts || is_by_method != (std::string_view(key) == kExpertMethod)) {
      block.erase(key);
    } else if (text_at(block, key) != kMxfp4Word) {
      block[key] = kMxfp4Word;
    }
  }
}

Json deepseek_block(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const NativeBlock native = native_block(model);
  const Json* kept = kept_block(model, native);
  if (kept == nullptr && native.has_foreign) {
    const bool is_said = model.source.quantization.has_value();
    throw Error(ErrorCode::kUnsupported,
                "dialect deepseek has fp8-block, fp8-tensor and int8-block only{} (give the others "
                "one of these, or take another dialect{})",
                is_said ? "" : ", and config.json has no quantization_config",
                is_said ? "" : "; ingot repair makes one for weights that are quantized already");
  }
  Json block = kept != nullptr ? *kept : standard_block(native);
  // A source may have had codes of another kind, which are only read.
  if (const Json& said = json_member(block, kCodeFormat);
      !said.is_null() && said != kE4m3 && said != kLongE4m3)
    block[kCodeFormat] = kE4m3;
  // A source may leave it to its readers; without it engines look for one scale per tensor.
  const auto& size = native.group.block;
  if (native.group.scheme != SchemeId::kFp8Tensor) block["weight_block_size"] = {size[0], size[1]};
  // Kernels that find ue8m0 read only a scale's exponent, so it must be true.
  if (native.group.scheme == SchemeId::kFp8Block && model.power_of_two_scales) {
    block[kScaleFormat] = "ue8m0";
  } else if (native.group.scheme == SchemeId::kFp8Block) {
    block.erase(kScaleFormat);
  }
  state_experts(model, native, block);
  state_mxfp4_experts(model, block);

  for (const char* key : {kModulesToNotConvert, kIgnoredLayers}) {
    if (block.contains(key)) block[key] = still_plain(string_list(block, key), model);
  }
  std::vector<std::string> listed = string_list(block, kModulesToNotConvert);
  const std::vector<std::string> of_others = string_list(block, kIgnoredLayers);
  listed.insert(listed.end(), of_others.begin(), of_others.end());
  std::sort(listed.begin(), listed.end());
  std::vector<std::string> added =
      with_joined_experts(silent_modules(model.tensors, kDeepseekDialect), model.tensors);
  const auto of_drafts = names_of_drafts(model.source, native.group.scheme, added);
  added.insert(added.end(), of_drafts.begin(), of_drafts.end());
  // Engines hand the config to these as well; a source's own values hold.
  if (kept == nullptr) {
    const std::vector<std::string> unlisted = unlisted_modules(model.tensors);
    added.insert(added.end(), unlisted.begin(), unlisted.end());
  }
  if (!listed.empty() || !added.empty()) {
    const std::vector<std::string> heads = heads_of(model.source);
    added.insert(added.end(), heads.begin(), heads.end());
  }
  std::erase_if(added,
                [&](const std::string& module) { return is_exempt(model.source, module, listed); });
  if (added.empty()) return block;
  // Once vLLM finds its own list it no longer looks at the other, so each gets all of both.
  listed.insert(listed.end(), added.begin(), added.end());
  merge_into_list(block, kModulesToNotConvert, listed);
  merge_into_list(block, kIgnoredLayers, listed);
  return block;
}

}  // namespace

bool is_exempt(const ModelConfig& config, std::string_view name,
               std::span<const std::string> modules) {
  const bool takes_ends = lists_ends_of_names(quantization_block(config));
  return std::ranges::any_of(module_aliases(name, config.text), [&](const std::string& alias) {
    return names_or_holds(modules, alias) ||
           (takes_ends && has_end_of(modules, module_name(alias)));
  });
}

bool lists_ends_of_names(const Json& block) {
  return !text_at(block, kExpertMethod).empty();
}

bool has_end_of(std::span<const std::string> entries, std::string_view module) {
  return std::ranges::any_of(entries, [&](std::string_view entry) {
    const std::size_t n = module.size();
    return !entry.empty() && n > entry.size() && module.ends_with(entry) &&
           module[n - entry.size() - 1] == '.';
  });
}

bool says_mxfp4_experts(const ModelConfig& config) {
  const Json* block = source_block(config, kDeepseekDialect);
  return block != nullptr && (text_at(*block, kExpertMethod) == kMxfp4Word ||
                              text_at(*block, kStoreDtype) == kMxfp4Word);
}

const Dialect kDeepseekDialect = {
    .name = "deepseek",
    .summary =
        "quant_method fp8 or blockwise_int8: X.weight with "
        "X.weight_scale_inv (X.weight_scale for a "
        "whole tensor), which multiplies",
    .methods = {"fp8", "blockwise_int8"},
    .storage = kDeepseekStorage,
    .native_storage = kNativeStorage,
    .expert_storage = expert_storage,
    .quantization_config = deepseek_block,
    .known_keys = {"quant_method", kCodeFormat, "activation_scheme", "weight_block_size",
                   kScaleFormat, kModulesToNotConvert, kIgnoredLayers, "expert_dtype", "dequantize",
                   kExpertMethod, kStoreDtype},
    .native_keys = kExpertKeys,
    .scale_format_key = kScaleFormat};

}  // namespace ingot::formats
