#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "check/rules/linear_modules.h"
#include "check/rules/loader_rule_bodies.h"
#include "check/rules/loader_targets.h"
#include "formats/dialect/config_groups.h"

// compressed-tensors: what config_groups and ignore say, against what is stored.

namespace ingot::formats::rule_bodies {
namespace {

constexpr std::array<std::string_view, 5> kGroupKeys = {"targets", "weights", "input_activations",
                                                        "output_activations", "format"};
constexpr std::array<std::string_view, 3> kArgumentObjects = {"weights", "input_activations",
                                                              "output_activations"};
constexpr std::array<std::string_view, 12> kArgumentKeys = {
    "actorder",        "block_structure", "dynamic",  "group_size", "num_bits", "observer",
    "observer_kwargs", "scale_dtype",     "strategy", "symmetric",  "type",     "zp_dtype"};
constexpr std::array<std::string_view, 12> kFormats = {
    "dense",           "int-quantized",   "float-quantized",      "naive-quantized",
    "pack-quantized",  "mixed-precision", "nvfp4-pack-quantized", "mxfp4-pack-quantized",
    "mxfp8-quantized", "sparse-bitmask",  "sparse-24-bitmask",    "marlin-24"};

constexpr std::string_view kNaive = "naive-quantized";  // 8 bits of either kind
constexpr std::string_view kMixed = "mixed-precision";

template <std::size_t kSize>
bool is_in(const std::array<std::string_view, kSize>& words, std::string_view word) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

void report_unknown_keys(const Json& object, std::span<const std::string_view> known,
                         const std::string& where, const Report& report) {
  for (const auto& [key, value] : object.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    report(in_config(ErrorCode::kUnsupported,
                     fmt::format("{} has a key '{}' that loaders refuse (remove it)", where, key)));
  }
}

std::string text_at(const Json& object, const char* key) {
  const auto value = object.find(key);
  return value != object.end() && value->is_string() ? value->get<std::string>() : std::string();
}

bool format_fits(SchemeId scheme, std::string_view format) {
  const std::string_view wanted = compressed_format(scheme);
  const bool is_8_bit = wanted == "float-quantized" || wanted == "int-quantized";
  return format == wanted || (is_8_bit && format == kNaive);
}

std::string scheme_text(const TargetGroup& group) {
  return group.scheme ? std::string(scheme_facts(*group.scheme).name) : "no scheme that is known";
}

/// What is wrong with the group that a quantized module falls to, or empty.
std::string group_fault(const LoaderTargets& config, const std::string& module, SchemeId scheme) {
  if (config.ignores(module)) return "is quantized, but ignore takes it in";
  const TargetGroup* group = config.group_of(module);
  if (group == nullptr) {
    if (config.has_unknown_classes()) return {};
    return "is quantized, but matches no target";
  }
  if (!group->has_weights || group->scheme != scheme) {
    return fmt::format("is {}, but the first target that it matches is of {}, which says {}",
                       scheme_facts(scheme).name, group->name, scheme_text(*group));
  }
  return {};
}

bool takes_in(const LoaderTargets& config, const std::string& module) {
  if (config.ignores(module)) return false;
  const TargetGroup* group = config.group_of(module);
  return group != nullptr && group->has_weights;
}

Finding at_module(const Checkpoint& checkpoint, const LinearModule& module, std::string message) {
  return at(checkpoint, codes_of(checkpoint, *module.tensor), ErrorCode::kMismatch,
            std::move(message));
}

/// Plain modules of one kind that some target takes in.
void report_taken_in(const Checkpoint& checkpoint, bool is_quantizable, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const LoaderTargets config(*block);
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (module.is_quantized || module.is_quantizable != is_quantizable) continue;
    if (!takes_in(config, module.name)) continue;
    found.add(
        module.tensor->rule,
        at_module(checkpoint, module,
                  fmt::format("is plain, but config_groups.{} takes it in (list it in ignore)",
                              config.group_of(module.name)->name)));
  }
  found.report(report);
}

}  // namespace

void ct_config_keys(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const auto groups = block->find("config_groups");
  if (groups == block->end() || !groups->is_object()) return;  // ct.targets says so
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object()) continue;
    const std::string where = fmt::format("config_groups.{}", name);
    report_unknown_keys(group, kGroupKeys, where, report);
    for (const std::string_view key : kArgumentObjects) {
      const auto arguments = group.find(key);
      if (arguments == group.end() || !arguments->is_object()) continue;
      report_unknown_keys(*arguments, kArgumentKeys, fmt::format("{}.{}", where, key), report);
    }
  }
}

void ct_format_known(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const auto judge = [&](const std::string& format, const std::string& where) {
    if (format.empty() || is_in(kFormats, format)) return;
    report(in_config(ErrorCode::kUnsupported,
                     fmt::format("{} is '{}', which no loader knows", where, format)));
  };
  judge(text_at(*block, "format"), "quantization_config.format");
  const LoaderTargets config(*block);
  for (const TargetGroup& group : config.groups())
    judge(group.format, fmt::format("config_groups.{}.format", group.name));
}

void ct_format_agrees(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const std::string top = text_at(*block, "format");
  const LoaderTargets config(*block);
  for (const TargetGroup& group : config.groups()) {
    if (!group.scheme) continue;
    // A group that names none has that of the whole.
    const std::string& format = group.format.empty() ? top : group.format;
    if (!is_in(kFormats, format) || format_fits(*group.scheme, format)) continue;
    report(in_config(
        ErrorCode::kMismatch,
        fmt::format("config_groups.{} is in format {}, but its weights are {}: {}", group.name,
                    format, scheme_facts(*group.scheme).name, compressed_format(*group.scheme))));
  }
  std::vector<std::string> formats;
  for (const TargetGroup& group : config.groups()) {
    if (!group.format.empty()) formats.push_back(group.format);
  }
  std::sort(formats.begin(), formats.end());
  formats.erase(std::unique(formats.begin(), formats.end()), formats.end());
  if (formats.empty() || !is_in(kFormats, top)) return;
  const std::string wanted = formats.size() == 1 ? formats.front() : std::string(kMixed);
  if (top == wanted || top == kMixed) return;
  report(in_config(ErrorCode::kMismatch, fmt::format("quantization_config.format is {}, its groups "
                                                     "make it {}",
                                                     top, wanted)));
}

void ct_targets(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const LoaderTargets config(*block);
  for (const std::string& fault : config.faults())
    report(in_config(ErrorCode::kCorrupt, "quantization_config " + fault));
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (!module.is_quantized) continue;
    std::string fault = group_fault(config, module.name, module.tensor->encoding.scheme);
    if (fault.empty()) continue;
    found.add(module.tensor->rule, at_module(checkpoint, module, std::move(fault)));
  }
  found.report(report);
}

void ct_ignore(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  report_taken_in(checkpoint, true, report);
}

void ct_ignore_never_quantized(const Checkpoint& checkpoint, const RuleOptions&,
                               const Report& report) {
  report_taken_in(checkpoint, false, report);
}

void ct_mtp_names(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const LoaderTargets config(*block);
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (module.mtp_name.empty()) continue;
    // What is wrong under the stored name has been said.
    if (module.is_quantized) {
      const SchemeId scheme = module.tensor->encoding.scheme;
      const std::string fault = group_fault(config, module.mtp_name, scheme);
      if (fault.empty() || !group_fault(config, module.name, scheme).empty()) continue;
      found.add(module.tensor->rule,
                at_module(checkpoint, module, fmt::format("as '{}' {}", module.mtp_name, fault)));
    } else if (module.is_quantizable && takes_in(config, module.mtp_name) &&
               !takes_in(config, module.name)) {
      found.add(module.tensor->rule,
                at_module(checkpoint, module,
                          fmt::format("is plain, but not ignored as '{}' (ignore both names)",
                                      module.mtp_name)));
    }
  }
  found.report(report);
}

void ct_static_input_scale(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json* block = config_block(checkpoint);
  if (block == nullptr) return;
  const LoaderTargets config(*block);
  FindingsByKind found;
  for (const LinearModule& module : linear_modules(checkpoint)) {
    if (!module.is_quantized || config.ignores(module.name)) continue;
    const TargetGroup* group = config.group_of(module.name);
    if (group == nullptr || !group->has_static_inputs) continue;
    if (module.tensor->encoding.stored.has(Part::kInputScale)) continue;
    found.add(module.tensor->rule,
              at(checkpoint, codes_of(checkpoint, *module.tensor), ErrorCode::kMissingTensor,
                 fmt::format("has no input scale, but the activations of config_groups.{} are "
                             "static",
                             group->name)));
  }
  found.report(report);
}

void ct_joined_scales(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (!is_quantized(tensor) || !is_joined_number(PartShape::kOne, tensor.rule)) continue;
    tensor.encoding.stored.for_each([&](Part, std::uint32_t index) {
      const StoredTensor& stored = checkpoint.stored()[index];
      if (stored.shape != Shape{1}) return;
      found.add(tensor.rule,
                at(checkpoint, stored, ErrorCode::kShapeMismatch,
                   "has shape [1], and SGLang 0.5.23 joins it with the one of q_a_proj or "
                   "kv_a_proj into a parameter of one number (shape [] loads)"));
    });
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
