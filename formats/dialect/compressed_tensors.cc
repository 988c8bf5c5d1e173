#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/config_groups.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"
#include "formats/modules/module_list.h"
#include "formats/modules/mtp_names.h"

// The flavour that vLLM's tools write: docs/formats.md, "Dialects".

namespace ingot::formats {
namespace {

using enum DType;
using enum PartShape;

constexpr std::array kFp8BlockParts = {codes_part(kF8E4M3), scale_part(kF32, kGrid)};
constexpr std::array kFp8ChannelParts = {codes_part(kF8E4M3), scale_part(kF32, kColumn)};
constexpr std::array kFp8TensorParts = {codes_part(kF8E4M3), scale_part(kF32, kOne),
                                        input_part(kOne)};
constexpr std::array kInt8ChannelParts = {codes_part(kI8), scale_part(kF32, kColumn),
                                          input_part(kOne)};
constexpr std::string_view kWeightPacked = ".weight_packed";
constexpr std::array kNvfp4Parts = {codes_part(kU8, kWeightPacked), scale_part(kF8E4M3, kGrid),
                                    global_part(kOne, ".weight_global_scale"),
                                    input_part(kOne, ".input_global_scale")};
constexpr std::array kMxfp4Parts = {codes_part(kU8, kWeightPacked), scale_part(kU8, kGrid)};
// weight_shape is I32 in releases and I64 from compressed-tensors itself.
constexpr std::array kInt4Parts = {
    codes_part(kI32, kWeightPacked),
    PartRow{Part::kScale, ".weight_scale", kBf16, kGrid, false, true},
    PartRow{Part::kZeroPoint, ".weight_zero_point", kI32, kZeros, true},
    PartRow{Part::kGroupOrder, ".weight_g_idx", kI32, kPerCol, true},
    PartRow{Part::kDimensions, ".weight_shape", kI32, kTwo, false, true},
};
constexpr std::string_view kFloatCodes = "float-quantized";
constexpr std::string_view kIntCodes = "int-quantized";
constexpr std::string_view kNvfp4 = "nvfp4-pack-quantized";
constexpr std::string_view kMxfp8 = "mxfp8-quantized";

using enum Activations;
constexpr std::array kCompressedStorage = {
    StorageRow{SchemeId::kFp8Block, kDynamic, kFloatCodes, kFp8BlockParts},
    StorageRow{SchemeId::kFp8Block, kWeightOnly, kFloatCodes, kFp8BlockParts},
    StorageRow{SchemeId::kFp8Channel, kDynamic, kFloatCodes, kFp8ChannelParts},
    StorageRow{SchemeId::kFp8Channel, kWeightOnly, kFloatCodes, kFp8ChannelParts},
    StorageRow{SchemeId::kFp8Tensor, kDynamic, kFloatCodes, without_inputs(kFp8TensorParts)},
    StorageRow{SchemeId::kFp8Tensor, kWeightOnly, kFloatCodes, without_inputs(kFp8TensorParts)},
    StorageRow{SchemeId::kFp8Tensor, kStatic, kFloatCodes, kFp8TensorParts},
    StorageRow{SchemeId::kInt8Channel, kDynamic, kIntCodes, without_inputs(kInt8ChannelParts)},
    StorageRow{SchemeId::kInt8Channel, kWeightOnly, kIntCodes, without_inputs(kInt8ChannelParts)},
    StorageRow{SchemeId::kInt8Channel, kStatic, kIntCodes, kInt8ChannelParts},
    StorageRow{SchemeId::kNvfp4, kWeightOnly, kNvfp4, without_inputs(kNvfp4Parts),
               /*global_divides=*/true},
    StorageRow{SchemeId::kNvfp4, kStatic, kNvfp4, kNvfp4Parts, /*global_divides=*/true},
    StorageRow{SchemeId::kMxfp4, kWeightOnly, "mxfp4-pack-quantized", kMxfp4Parts},
    StorageRow{SchemeId::kMxfp8, kWeightOnly, kMxfp8, kMxfp8Parts},
    StorageRow{SchemeId::kMxfp8, kDynamic, kMxfp8, kMxfp8Parts},
    StorageRow{SchemeId::kInt4Group, kWeightOnly, "pack-quantized", kInt4Parts},
    // FP8 activations of tokens with INT4 experts (W4A8).
    kept_only({SchemeId::kInt4Group, kDynamic, "pack-quantized", kInt4Parts}),
};

constexpr const char* kIgnore = "ignore";

/// vLLM's and SGLang's heads are no `Linear`: they are quantized if a target is their name.
void name_heads(const WrittenModel& model, const QuantizationGroup& group,
                std::vector<std::string>& targets) {
  for (const WrittenTensor& tensor : model.tensors) {
    const bool is_head = tensor.rule != nullptr && tensor.rule->silence == Silence::kHead;
    if (!is_head || !is_quantized(tensor.scheme) || group_of(tensor, model.source) != group)
      continue;
    const std::string_view module = module_name(tensor.name);
    std::string alias = mtp_names(module, 0).head;
    for (std::string name : {std::string(module), std::move(alias)}) {
      if (!name.empty() && !ModuleList(targets, PatternSyntax::kRegex).covers_for_all(name))
        targets.push_back(std::move(name));
    }
  }
}

/// compressed-tensors' own converter reads files, in which no weight has a class: `Linear` is every
/// `X.weight` to it, norms too, and must have a scale. Engines do not need these entries.
void ignore_all_plain(const WrittenModel& model, std::vector<std::string>& ignored) {
  constexpr const char* kNorms = "re:.*norm$";
  const ModuleList norms(std::vector<std::string>{kNorms}, PatternSyntax::kRegex);
  const bool has_quantized_norm =
      std::any_of(model.tensors.begin(), model.tensors.end(), [&](const WrittenTensor& tensor) {
        return is_quantized(tensor.scheme) && norms.covers_for_all(module_name(tensor.name));
      });
  const ModuleList linears(ignored, PatternSyntax::kRegex);
  for (const WrittenTensor& tensor : model.tensors) {
    const std::string_view module = module_name(tensor.name);
    if (is_quantized(tensor.scheme) || module == tensor.name || linears.covers_for_all(module))
      continue;
    const bool is_norm = !has_quantized_norm && norms.covers_for_all(module);
    ignored.emplace_back(is_norm ? kNorms : module);
  }
  sort_unique(ignored);
}

// Empty for a scheme that the dialect does not hold, which config_group() refuses.
std::string_view format_of(SchemeId scheme) {
  const StorageRow* row = find_storage(kCompressedTensorsDialect, scheme);
  return row == nullptr ? "" : row->config_name;
}

/// transformers ends where an expression takes in a module that is no linear layer, as `self_attn`
/// itself: it has to end with a projection, unless the class has other linear layers there.
std::vector<std::string> of_projections(std::vector<std::string> targets,
                                        const WrittenGroups& written, std::uint32_t cls) {
  constexpr std::string_view kAnything = ".*", kProjection = ".*proj[^.]*$";
  for (std::string& target : targets) {
    if (!target.starts_with("re:") || !target.ends_with(kAnything)) continue;
    const std::array all = {target};
    std::string narrow = target.substr(0, target.size() - kAnything.size()).append(kProjection);
    const std::array some = {narrow};
    const ModuleList wide(all, PatternSyntax::kRegex), of_leaves(some, PatternSyntax::kRegex);
    const bool has_all = std::ranges::all_of(written.modules, [&](const ClassedModule& module) {
      return module.cls != cls || !wide.covers_for_all(module.name) ||
             of_leaves.covers_for_all(module.name);
    });
    if (has_all) target = std::move(narrow);
  }
  return targets;
}

bool has_experts(const WrittenGroups& written, std::uint32_t cls) {
  return std::ranges::any_of(written.modules, [&](const ClassedModule& module) {
    return module.cls == cls && !experts_of(module.name).empty();
  });
}

/// SGLang knows one size of blocks: that of the group whose target is `Linear`. It asks for it
/// where it joins weights, and for kv_b_proj in FP8 or INT8, whatever that one's own group says.
constexpr std::string_view kLinear = "Linear";

/// The entry of the ignore list for heads that vLLM builds without a name.
constexpr const char* kEmptyName = "re:^$";

/// The class that gets this target, so that it takes in what no other group and no entry of the
/// ignore list names; 0: none. In a mixture that of FP8 in blocks, unless kv_b_proj has 8 bits
/// without blocks.
std::uint32_t class_of_linears(const WrittenModel& model, const WrittenGroups& written) {
  if (written.groups.size() == 1) return 1;
  const bool has_other_kv_b = std::ranges::any_of(model.tensors, [](const WrittenTensor& tensor) {
    const bool has_bytes = tensor.scheme == SchemeId::kFp8Channel ||
                           tensor.scheme == SchemeId::kFp8Tensor ||
                           tensor.scheme == SchemeId::kInt8Channel;
    return has_bytes && tensor.rule != nullptr && tensor.rule->role == Role::kKvbProj;
  });
  const auto group =
      std::ranges::find(written.groups, SchemeId::kFp8Block, &QuantizationGroup::scheme);
  if (has_other_kv_b || group == written.groups.end()) return 0;
  return static_cast<std::uint32_t>(group - written.groups.begin()) + 1;
}

/// The classes of quantized modules, that of the routed experts first: transformers takes the first
/// group with an expression that has this word for theirs. The one that takes in the rest is the
/// last in a mixture: compressed-tensors' own converter asks group by group.
std::vector<std::uint32_t> ordered_classes(const WrittenGroups& written, std::uint32_t of_linears) {
  std::vector<std::uint32_t> classes(written.groups.size());
  std::iota(classes.begin(), classes.end(), 1U);
  const auto rest = std::stable_partition(classes.begin(), classes.end(),
                                          [&](std::uint32_t cls) { return cls != of_linears; });
  std::stable_partition(classes.begin(), rest,
                        [&](std::uint32_t cls) { return has_experts(written, cls); });
  return classes;
}

Json derived_block(const WrittenModel& model, WrittenGroups written) {
  const bool is_mixed = written.groups.size() > 1;
  const std::uint32_t of_linears = class_of_linears(model, written);
  // SGLang and vLLM 0.25 ask for the class before the parts of a joined module.
  if (is_mixed && of_linears != 0)
    std::ranges::copy(joined_modules(written.modules), std::back_inserter(written.modules));
  const auto patterns = [&](std::uint32_t cls) {
    return module_patterns(written.modules, cls, model.source.num_hidden_layers,
                           PatternSyntax::kRegex);
  };
  const std::vector<std::uint32_t> classes = ordered_classes(written, of_linears);
  const SchemeId first = written.groups[classes.front() - 1].scheme;
  const bool is_int4 = first == SchemeId::kInt4Group && has_experts(written, classes.front());
  std::string_view format = format_of(first);
  Json groups = Json::object();
  for (const std::uint32_t cls : classes) {
    const QuantizationGroup& group = written.groups[cls - 1];
    // SGLang reads INT4 experts only by the format of the whole.
    if (format_of(group.scheme) != format && !is_int4) format = "mixed-precision";
    std::vector<std::string> targets = cls == of_linears
                                           ? std::vector<std::string>{std::string(kLinear)}
                                           : of_projections(patterns(cls), written, cls);
    name_heads(model, group, targets);
    groups[fmt::format("group_{}", groups.size())] = config_group(group, targets);
  }
  std::vector<std::string> ignored = patterns(0);
  if (of_linears != 0) {
    // Packed codes have a name that plain weights do not share.
    const SchemeId scheme = written.groups[of_linears - 1].scheme;
    const StorageRow* row = find_storage(kCompressedTensorsDialect, scheme);
    if (row->parts.front().suffix == kWeightSuffix) ignore_all_plain(model, ignored);
  }
  if (has_nameless_head(model.source)) ignored.emplace_back(kEmptyName);
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", std::move(groups)},
          {kIgnore, ignored},
          {"kv_cache_scheme", nullptr}};
}

/// The tensors that no list may name. Embeddings are no `Linear`; SGLang's `w8a8_int8`, its one
/// loader of INT8 experts, makes a linear of every module that is named.
bool is_unnameable(const WrittenTensor& tensor) {
  return !is_quantized(tensor.scheme) && tensor.rule != nullptr &&
         (tensor.rule->role == Role::kEmbedding || tensor.rule->role == Role::kMtpEmbedding);
}

/// True if all tensors that are quantized are INT8.
bool is_int8(const WrittenModel& model) {
  return std::ranges::all_of(model.tensors, [](const WrittenTensor& tensor) {
    return !is_quantized(tensor.scheme) || tensor.scheme == SchemeId::kInt8Channel;
  });
}

/// True if the source's block gives the right form for every quantized module, and gives no plain
/// module a form that is never written here (packed codes of 8 bits).
bool describes(const ConfigGroups& source, const WrittenModel& model,
               const WrittenGroups& written) {
  const std::uint32_t cls = class_of_linears(model, written);
  const ConfigGroup* linears = source.exact_target(kLinear);
  if (cls != 0 && written.groups[cls - 1].scheme == SchemeId::kFp8Block &&
      (linears == nullptr || linears->scheme != SchemeId::kFp8Block))
    return false;  // SGLang would miss the size of blocks
  return std::ranges::all_of(written.modules, [&](const ClassedModule& module) {
    const ConfigGroup* group = source.stored_group(module.name);
    if (module.cls != 0) {
      const QuantizationGroup& form = written.groups[module.cls - 1];
      // INT8 has a scale for each row, also where the source has one for each matrix.
      const bool has_rows = form.scheme != SchemeId::kInt8Channel || group == nullptr ||
                            text_at(json_member(*group->json, "weights"), "strategy") == "channel";
      return has_rows && source.group_of(module.name) == form;
    }
    return group == nullptr || !group->has_weights || group->scheme.has_value();
  });
}

Json compressed_block(const WrittenModel& whole) {
  if (!any_quantized(whole.tensors)) return nullptr;
  std::vector<WrittenTensor> tensors;
  WrittenModel model = whole;
  if (is_int8(whole)) {
    std::ranges::remove_copy_if(whole.tensors, std::back_inserter(tensors), is_unnameable);
    model.tensors = tensors;
  }
  const WrittenGroups written = written_groups(model);
  const Json* kept = source_block(model.source, kCompressedTensorsDialect);
  if (kept == nullptr) return derived_block(model, written);
  const ConfigGroups source(*kept);
  if (!describes(source, model, written)) return derived_block(model, written);
  std::vector<std::string> plain = silent_modules(model.tensors, kCompressedTensorsDialect);
  plain.erase(std::remove_if(plain.begin(), plain.end(),
                             [&](const std::string& module) { return !source.group_of(module); }),
              plain.end());
  if (has_nameless_head(model.source)) plain.emplace_back(kEmptyName);
  Json block = *kept;
  if (!plain.empty()) merge_into_list(block, kIgnore, plain);
  return block;
}

/// True if the arguments are those of integers with zero points.
bool is_asymmetric(const Json& weights) {
  return (json_member(weights, "type").is_null() || text_at(weights, "type") == "int") &&
         json_member(weights, "symmetric") == false;
}

ConfigForms forms_of_groups(const ModelConfig& config, const Json&,
                            std::vector<std::string>* faults) {
  const Json* block = source_block(config, kCompressedTensorsDialect);
  if (block == nullptr) return nullptr;
  return [groups = std::make_shared<const ConfigGroups>(*block, faults)](
             std::string_view weight) -> ConfigForm {
    const std::string_view module = module_name(weight);
    const ConfigGroup* stored = groups->stored_group(module);
    if (stored == nullptr) return {};
    const auto group = groups->group_of(module);
    return {.scheme = stored->scheme,
            .activations = group ? std::optional(group->activations) : std::nullopt,
            .because = "config_groups." + stored->name,
            .has_zero_points = is_asymmetric(json_member(*stored->json, "weights")),
            .has_row_scales = groups->has_row_scales(module),
            .numbers = [stored] { return activations_text(*stored); }};
  };
}

}  // namespace

const Dialect kCompressedTensorsDialect = {
    .name = "compressed-tensors",
    .summary = "quant_method compressed-tensors: X.weight with X.weight_scale, which multiplies",
    .methods = {"compressed-tensors"},
    .storage = kCompressedStorage,
    .holds_mixtures = true,
    .heads = Heads::kByName,
    .quantization_config = compressed_block,
    .config_forms = forms_of_groups,
    .block_size = compressed_tensors_block_size,
    .known_keys = {"quant_method", "format", "config_groups", kIgnore, "quantization_status",
                   "global_compression_ratio", "sparsity_config", "transform_config", "version"},
    .own_key = "config_groups",
    .has_config_groups = true};

}  // namespace ingot::formats
