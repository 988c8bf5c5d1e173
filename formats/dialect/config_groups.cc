#include "formats/dialect/config_groups.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/dialect_table.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kLinear = "Linear";

/// How compressed-tensors says what a scheme is.
struct GroupForm {
  SchemeId scheme{};
  std::string_view format;
  std::string_view type;
  std::uint32_t num_bits = 8;
  std::string_view strategy;
  std::uint32_t group_size = 0;  ///< 0: the strategy has none
  std::string_view scale_dtype;  ///< of those whose scales are neither F32 nor BF16
  std::string_view at_run_time;  ///< strategy of activations with kDynamic
  std::string_view beforehand;   ///< of those with kStatic
};

constexpr std::array kForms = {
    GroupForm{.scheme = SchemeId::kFp8Block,
              .format = "float-quantized",
              .type = "float",
              .strategy = "block",
              .scale_dtype = "",
              .at_run_time = "group",
              .beforehand = ""},
    GroupForm{.scheme = SchemeId::kFp8Channel,
              .format = "float-quantized",
              .type = "float",
              .strategy = "channel",
              .scale_dtype = "",
              .at_run_time = "token",
              .beforehand = "tensor"},
    GroupForm{.scheme = SchemeId::kFp8Tensor,
              .format = "float-quantized",
              .type = "float",
              .strategy = "tensor",
              .scale_dtype = "",
              .at_run_time = "token",
              .beforehand = "tensor"},
    GroupForm{.scheme = SchemeId::kInt8Channel,
              .format = "int-quantized",
              .type = "int",
              .strategy = "channel",
              .scale_dtype = "",
              .at_run_time = "token",
              .beforehand = "tensor"},
    GroupForm{.scheme = SchemeId::kNvfp4,
              .format = "nvfp4-pack-quantized",
              .type = "float",
              .num_bits = 4,
              .strategy = "tensor_group",
              .group_size = 16,
              .scale_dtype = "torch.float8_e4m3fn",
              .at_run_time = "",
              .beforehand = "tensor_group"},
    GroupForm{.scheme = SchemeId::kMxfp4,
              .format = "mxfp4-pack-quantized",
              .type = "float",
              .num_bits = 4,
              .strategy = "group",
              .group_size = 32,
              .scale_dtype = "torch.uint8",
              .at_run_time = "group",
              .beforehand = ""},
    GroupForm{.scheme = SchemeId::kMxfp8,
              .format = "mxfp8-quantized",
              .type = "float",
              .strategy = "group",
              .group_size = 32,
              .scale_dtype = "torch.uint8",
              .at_run_time = "group",
              .beforehand = ""},
};

const GroupForm& form_of(SchemeId scheme) {
  for (const GroupForm& form : kForms) {
    if (form.scheme == scheme) return form;
  }
  throw Error(ErrorCode::kUnsupported,
              fmt::format("compressed-tensors has no form for {}", scheme_facts(scheme).name));
}

Json weight_args(const GroupForm& form, const QuantizationGroup& group) {
  Json args = {{"num_bits", form.num_bits}, {"type", form.type}, {"strategy", form.strategy}};
  if (form.group_size != 0) args["group_size"] = form.group_size;
  if (group.block[0] != 0) args["block_structure"] = {group.block[0], group.block[1]};
  args["symmetric"] = true;
  args["dynamic"] = false;
  if (!form.scale_dtype.empty()) args["scale_dtype"] = form.scale_dtype;
  return args;
}

Json activation_args(const GroupForm& form, const QuantizationGroup& group) {
  if (group.activations == Activations::kWeightOnly) return nullptr;
  const bool is_dynamic = group.activations == Activations::kDynamic;
  const std::string_view strategy = is_dynamic ? form.at_run_time : form.beforehand;
  if (strategy.empty()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("compressed-tensors has no {} activations beside {}",
                            activations_name(group.activations), scheme_facts(group.scheme).name));
  }
  Json args = {{"num_bits", form.num_bits}, {"type", form.type}, {"strategy", strategy}};
  // A group of activations is as long as the block or group of weights that it meets.
  const std::uint64_t size = form.group_size != 0 ? form.group_size : group.block[1];
  if (strategy == "group" || strategy == "tensor_group") args["group_size"] = size;
  args["symmetric"] = true;
  args["dynamic"] = is_dynamic;
  // Only the global scale of NVFP4 activations is known beforehand.
  if (strategy == "tensor_group") args["dynamic"] = "local";
  if (!form.scale_dtype.empty()) args["scale_dtype"] = form.scale_dtype;
  return args;
}

Error corrupt(std::string_view what, std::string_view fact) {
  return Error(ErrorCode::kCorrupt, fmt::format("'quantization_config.{}' {}", what, fact))
      .in_file("config.json");
}

ModuleList list_of(const Json& owner, const char* key) {
  const std::vector<std::string> entries = string_list(owner, key);
  try {
    return {entries, PatternSyntax::kRegex};
  } catch (const Error& error) {
    throw corrupt(key, error.message());
  }
}

std::optional<Activations> activations_of(const Json& group) {
  const auto args = group.find("input_activations");
  if (args == group.end() || args->is_null()) return Activations::kWeightOnly;
  if (!args->is_object()) return std::nullopt;
  return args->value("dynamic", Json()) == true ? Activations::kDynamic : Activations::kStatic;
}

std::optional<QuantizationGroup> meaning_of(const Json& group) {
  const auto weights = group.find("weights");
  if (weights == group.end() || !weights->is_object()) return std::nullopt;
  const auto activations = activations_of(group);
  if (!activations || weights->value("symmetric", Json(true)) != true) return std::nullopt;
  const Json size = weights->value("group_size", Json());
  for (const GroupForm& form : kForms) {
    if (weights->value("type", Json()) != form.type ||
        weights->value("num_bits", Json()) != form.num_bits ||
        weights->value("strategy", Json()) != form.strategy)
      continue;
    if (form.group_size != 0 && size != form.group_size) continue;
    QuantizationGroup meaning{.scheme = form.scheme, .activations = *activations};
    if (form.strategy == "block") {
      const Json sides = weights->value("block_structure", Json());
      if (!sides.is_array() || sides.size() != 2 || !sides[0].is_number_unsigned() ||
          !sides[1].is_number_unsigned())
        return std::nullopt;
      meaning.block = {sides[0].get<std::uint64_t>(), sides[1].get<std::uint64_t>()};
    }
    return meaning;
  }
  return std::nullopt;
}

}  // namespace

std::string_view compressed_format(SchemeId scheme) {
  return form_of(scheme).format;
}

Json config_group(const QuantizationGroup& group, const std::vector<std::string>& targets) {
  const GroupForm& form = form_of(group.scheme);
  return {{"format", form.format},
          {"targets", targets},
          {"weights", weight_args(form, group)},
          {"input_activations", activation_args(form, group)},
          {"output_activations", nullptr}};
}

ConfigGroups::ConfigGroups(const Json& block) : ignored_(list_of(block, "ignore")) {
  const auto groups = block.find("config_groups");
  if (groups == block.end() || groups->is_null()) return;
  if (!groups->is_object()) throw corrupt("config_groups", "is not an object");
  for (const auto& [name, group] : groups->items()) {
    // A preset's name with its targets; readers that know presets are not asked here.
    if (!group.is_object()) continue;
    const std::vector<std::string> targets = string_list(group, "targets");
    groups_.push_back(
        {.is_for_all = std::find(targets.begin(), targets.end(), kLinear) != targets.end(),
         .targets = list_of(group, "targets"),
         .meaning = meaning_of(group)});
  }
}

bool ConfigGroups::is_ignored(std::string_view module) const {
  return ignored_.covers_for_all(module);
}

std::optional<QuantizationGroup> ConfigGroups::group_of(std::string_view module) const {
  if (is_ignored(module)) return std::nullopt;
  for (const Group& group : groups_) {
    if (group.is_for_all || group.targets.covers_for_all(module)) return group.meaning;
  }
  return std::nullopt;
}

}  // namespace ingot::formats
