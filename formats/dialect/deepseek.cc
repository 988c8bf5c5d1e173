#include <algorithm>
#include <set>

#include "formats/base/error.h"
#include "formats/dialect/dialect_table.h"
#include "formats/family/families.h"
#include "formats/family/text_names.h"
#include "formats/json/json.h"
#include "formats/modules/module_list.h"

// Native DeepSeek FP8 as released: docs/formats.md, "config.json quantization block".

namespace ingot::formats {
namespace {

constexpr std::array kFp8BlockParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale_inv", DType::kF32, PartShape::kGrid},
};
constexpr std::array kInt8BlockParts = {
    PartRow{Part::kWeight, ".weight", DType::kI8, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale_inv", DType::kF32, PartShape::kGrid},
};
constexpr std::array kFp8TensorParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    // No dimensions: SGLang joins q_a and kv_a, and asserts on two scales of shape [1].
    PartRow{Part::kScale, ".weight_scale", DType::kF32, PartShape::kScalar},
};
// Releases of Mistral: the names of transformers, which loaders of other models do not know.
constexpr std::array kFp8ScalarParts = {
    PartRow{Part::kWeight, ".weight", DType::kF8E4M3, PartShape::kCodes},
    PartRow{Part::kScale, ".weight_scale_inv", DType::kF32, PartShape::kScalar},
    PartRow{Part::kInputScale, ".activation_scale", DType::kF32, PartShape::kScalar},
};
constexpr std::array kStorage = {
    StorageRow{.scheme = SchemeId::kFp8Block,
               .activations = Activations::kDynamic,
               .config_name = "fp8",
               .parts = kFp8BlockParts,
               .experts = ExpertForm::kEither},
    StorageRow{SchemeId::kFp8Tensor, Activations::kDynamic, "fp8", kFp8TensorParts},
    StorageRow{.scheme = SchemeId::kFp8Tensor,
               .activations = Activations::kStatic,
               .config_name = "fp8",
               .parts = kFp8ScalarParts,
               .is_kept_only = true,
               .experts = ExpertForm::kEither},
    StorageRow{SchemeId::kInt8Block, Activations::kDynamic, "blockwise_int8", kInt8BlockParts},
};

// transformers reads the first, vLLM the second where it is there.
constexpr const char* kTransformersList = "modules_to_not_convert";
constexpr const char* kVllmList = "ignored_layers";

constexpr const char* kScaleFormat = "scale_fmt";
constexpr std::string_view kPowersOfTwo = "ue8m0";

/// The one way in which this dialect's engines take quantized weights.
struct NativeBlock {
  QuantizationGroup group;  ///< `block` is {0, 0} where a tensor has one scale
  /// Packed experts under DeepSeek's native names, which only the source's own block describes.
  bool has_foreign = false;
};

std::string_view method_of(const NativeBlock& native) {
  return find_storage(kDeepseekDialect, native.group.scheme)->config_name;
}

bool is_static(const NativeBlock& native) {
  return native.group.activations == Activations::kStatic;
}

NativeBlock native_block(const WrittenModel& model) {
  std::optional<QuantizationGroup> found;
  bool has_foreign = false;
  for (const QuantizationGroup& group : written_groups(model).groups) {
    if (find_storage(kDeepseekDialect, group.scheme) == nullptr) {
      has_foreign = true;
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
                                      .activations = Activations::kDynamic,
                                      .block = fp8_block_size(model.source)};
  return {.group = found.value_or(released), .has_foreign = has_foreign};
}

Json standard_block(const NativeBlock& native) {
  Json block = {{"activation_scheme", is_static(native) ? "static" : "dynamic"}};
  if (native.group.scheme != SchemeId::kInt8Block) block["fmt"] = "e4m3";
  block["quant_method"] = method_of(native);
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
  const bool holds = source.quant_method == method_of(native) && has_size &&
                     (source.activation_scheme == "static") == is_static(native);
  return holds ? block : nullptr;
}

/// Kernels that find ue8m0 read nothing but a scale's exponent, so it must be true.
void state_scale_format(Json& block, bool is_power_of_two) {
  if (!is_power_of_two) {
    block.erase(kScaleFormat);
  } else if (!block.contains(kScaleFormat) || block[kScaleFormat] != kPowersOfTwo) {
    block[kScaleFormat] = kPowersOfTwo;
  }
}

/// `entries` is sorted.
bool is_listed(const std::vector<std::string>& entries, std::string_view module,
               const ModelConfig& source) {
  const std::vector<std::string> names = module_aliases(module, source.text);
  return std::ranges::any_of(
      names, [&](const std::string& name) { return names_or_holds(entries, name); });
}

/// What releases need not name, and a list of ours does: plain linear layers of towers for images
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

/// Names that only SGLang 0.5.23 knows plain modules by: those of draft models, and what joins q_a
/// with kv_a, which it takes apart in the lists of FP8 main models alone
/// (models/deepseek_v2.py:3266, layers/quantization/blockwise_int8.py:111).
std::vector<std::string> names_of_sglang(const ModelConfig& source, SchemeId scheme,
                                         std::span<const std::string> modules) {
  constexpr std::string_view kLast = "kv_a_proj_with_mqa";
  std::vector<std::string> names;
  for (const std::string& module : modules) {
    std::string draft = draft_module_name(module, source.num_hidden_layers);
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

Json quantization_config(const WrittenModel& model) {
  if (!any_quantized(model.tensors)) return nullptr;
  const NativeBlock native = native_block(model);
  const Json* kept = kept_block(model, native);
  if (kept == nullptr && native.has_foreign) {
    throw Error(ErrorCode::kUnsupported,
                "dialect deepseek has fp8-block, fp8-tensor and int8-block only (give the others "
                "one of these, or take another dialect)");
  }
  Json block = kept != nullptr ? *kept : standard_block(native);
  // A source may leave it to its readers; without it engines look for one scale per tensor.
  const auto& size = native.group.block;
  if (native.group.scheme != SchemeId::kFp8Tensor) block["weight_block_size"] = {size[0], size[1]};
  if (native.group.scheme == SchemeId::kFp8Block)
    state_scale_format(block, model.power_of_two_scales);

  for (const char* key : {kTransformersList, kVllmList}) {
    if (block.contains(key)) block[key] = still_plain(string_list(block, key), model);
  }
  std::vector<std::string> listed = string_list(block, kTransformersList);
  const std::vector<std::string> of_vllm = string_list(block, kVllmList);
  listed.insert(listed.end(), of_vllm.begin(), of_vllm.end());
  std::sort(listed.begin(), listed.end());
  std::vector<std::string> added =
      with_joined_experts(silent_modules(model.tensors, kDeepseekDialect), model.tensors);
  const auto of_sglang = names_of_sglang(model.source, native.group.scheme, added);
  added.insert(added.end(), of_sglang.begin(), of_sglang.end());
  // Engines hand the config to these as well; what a source says of its own holds.
  if (kept == nullptr) {
    const std::vector<std::string> unlisted = unlisted_modules(model.tensors);
    added.insert(added.end(), unlisted.begin(), unlisted.end());
  }
  if (!listed.empty() || !added.empty()) {
    const std::vector<std::string> heads = heads_of(model.source);
    added.insert(added.end(), heads.begin(), heads.end());
  }
  std::erase_if(added,
                [&](const std::string& module) { return is_listed(listed, module, model.source); });
  if (added.empty()) return block;
  // Once vLLM finds its own list it no longer looks at the other, so each gets all of both.
  listed.insert(listed.end(), added.begin(), added.end());
  merge_into_list(block, kTransformersList, listed);
  merge_into_list(block, kVllmList, listed);
  return block;
}

}  // namespace

const Dialect kDeepseekDialect = {.name = "deepseek",
                                  .summary =
                                      "quant_method fp8 or blockwise_int8: X.weight with "
                                      "X.weight_scale_inv (X.weight_scale for a "
                                      "whole tensor), which multiplies",
                                  .storage = kStorage,
                                  .quantization_config = quantization_config,
                                  .scale_format_key = kScaleFormat};

}  // namespace ingot::formats
