#include <map>
#include <string_view>

#include "check/rules/rule_input.h"
#include "formats/family/text_names.h"
#include "formats/modules/module_list.h"
#include "formats/storage/encoding.h"

// compressed-tensors: what config_groups and ignore say, against what is stored.

namespace ingot::check {

using formats::ConfigGroup;
using formats::Encoding;

namespace {

constexpr std::string_view kNaive = "naive-quantized";  // FP8 or INT8
constexpr std::string_view kMixed = "mixed-precision";
constexpr std::string_view kPacked = "pack-quantized";
// Names of formats that no scheme of the dialect has.
constexpr std::array<std::string_view, 6> kOtherFormats = {
    "dense", kNaive, kMixed, "sparse-bitmask", "sparse-24-bitmask", "marlin-24"};

bool is_known_format(const RuleInput& input, std::string_view format) {
  return is_in(kOtherFormats, format) || find_storage(input.dialect(), format) != nullptr;
}

bool format_fits(std::string_view wanted, std::string_view format) {
  const bool may_be_naive = wanted == "float-quantized" || wanted == "int-quantized";
  return format == wanted || (may_be_naive && format == kNaive);
}

/// The format of the whole, or empty.
std::string top_format(const RuleInput& input) {
  return text_at(input.block(), "format");
}

std::span<const ConfigGroup> groups_of(const RuleInput& input) {
  const auto& config = input.facts.groups;
  return config ? config->groups() : std::span<const ConfigGroup>();
}

/// The group that a module falls to, or null: ignored, of no target, or there is no block that
/// speaks of groups.
const ConfigGroup* group_named(const RuleInput& input, std::string_view module) {
  const auto& config = input.facts.groups;
  return config ? config->stored_group(module) : nullptr;
}

/// The columns that share a scale, zero points and their order, as a group says them, compared with
/// what is stored; empty where they agree, and where the scheme leaves no choice.
std::string chosen_group_fault(const ConfigGroup& group, const LogicalTensor& tensor) {
  const Encoding& encoding = tensor.encoding;
  if (encoding.scheme == SchemeId::kInt8Channel) {
    const bool is_whole = text_at(json_member(*group.json, "weights"), "strategy") == "tensor";
    const auto count = [](bool is_one) { return is_one ? "matrix" : "row"; };
    if (is_whole != !encoding.rows_of_scales.empty())
      return fmt::format("has a scale per {}, but {} says per {}", count(!is_whole), group.name,
                         count(is_whole));
  }
  if (!facts_of(tensor).chooses_cols) return {};
  const auto columns = [&](std::uint64_t n) {
    return n == 0 || n >= tensor.shape.back() ? std::string("whole rows")
                                              : fmt::format("{} columns", n);
  };
  if (columns(group.block[1]) != columns(encoding.block_cols)) {
    return fmt::format("has a scale per {}, but {} says per {}", columns(encoding.block_cols),
                       group.name, columns(group.block[1]));
  }
  // Zero points that are lost are a fault of the recognition.
  if (encoding.stored.has(Part::kZeroPoint) && !group.has_zero_points)
    return fmt::format("has zero points, but {} says symmetric", group.name);
  if (encoding.stored.has(Part::kGroupOrder) != group.has_group_order) {
    return fmt::format("{} weight_g_idx, but actorder of {} says {}",
                       group.has_group_order ? "has no" : "has a", group.name,
                       group.has_group_order ? "so" : "none");
  }
  return {};
}

/// True if a group is of integers of 8 bits that are packed, which are seen as INT8
/// (is_packed_int8()).
bool is_of_packed_bytes(const ConfigGroup& group) {
  const Json& weights = json_member(*group.json, "weights");
  const Json &bits = json_member(weights, "num_bits"), &type = json_member(weights, "type");
  return weights.is_object() && (bits.is_null() || bits == 8) &&
         (type.is_null() || type == std::string_view("int"));
}

/// The fault of the group that a quantized module falls to, or empty.
std::string group_fault(const formats::ConfigGroups& config, std::string_view module,
                        const LogicalTensor& tensor) {
  const SchemeId scheme = tensor.encoding.scheme;
  if (config.is_ignored(module)) return "is quantized, but ignore takes it in";
  const ConfigGroup* group = config.target_of(module);
  if (group == nullptr)
    return config.has_unknown_classes() ? "" : "is quantized, but matches no target";
  if (group->scheme == scheme) return chosen_group_fault(*group, tensor);
  if (formats::is_packed_int8(tensor.encoding) && is_of_packed_bytes(*group)) return {};
  return fmt::format("is {}, but the first target that it matches is of {}, which says {}",
                     scheme_facts(scheme).name, group->name,
                     group->scheme ? scheme_facts(*group->scheme).name : "no scheme that is known");
}

/// Reports a plain module that a target of the config matches.
template <bool is_quantizable>
void taken_in(const RuleInput& input, const LinearModule& module) {
  if (module.is_quantized || module.is_quantizable != is_quantizable) return;
  // Some engines ask by the name that only the text model has.
  const auto names = formats::module_aliases(module.name, input.config().text);
  const auto takes_in = [&](const std::string& name) {
    const ConfigGroup* group = group_named(input, name);
    return group != nullptr && group->has_weights;
  };
  if (std::ranges::all_of(names, takes_in))
    input.report_kind(*module.tensor, kMismatch,
                      "is plain, but config_groups.{} takes it in (list it in ignore)",
                      input.facts.groups->target_of(module.name)->name);
}

/// The head of a tied model is the embedding: vLLM builds the head by the group whose target names
/// it, and gives that layer the embedding's plain numbers (qwen3.py:307 of 0.32).
void tied_target(const RuleInput& input) {
  constexpr std::string_view kHead = "lm_head";
  if (!input.config().tie_word_embeddings || !input.facts.groups ||
      head_of(input.config()) != formats::ModelHead::kTokens)
    return;
  const bool is_plain_table = std::ranges::none_of(input.weights(), [](const LogicalTensor& t) {
    const bool is_table = role_of(t.rule) == Role::kEmbedding;
    return role_of(t.rule) == Role::kHead || (is_table && is_quantized(t.encoding.scheme));
  });
  const ConfigGroup* group = input.facts.groups->named_target(kHead);
  if (is_plain_table && group != nullptr && group->has_weights &&
      !input.facts.groups->is_ignored(kHead))
    input.report_config(kMismatch,
                        "config_groups.{} names {}, which is the plain embedding here: vLLM builds "
                        "it quantized (list it in ignore; ingot repair does)",
                        group->name, kHead);
}

/// Groups that some module is quantized by, by name; where a module is of another scheme,
/// ct.targets says so.
std::map<std::string, const ConfigGroup*> used_groups(const RuleInput& input) {
  std::map<std::string, const ConfigGroup*> used;
  for (const LinearModule& module : input.facts.modules) {
    const ConfigGroup* group = module.is_quantized ? group_named(input, module.name) : nullptr;
    if (group != nullptr && group->scheme == module.tensor->encoding.scheme)
      used.emplace(group->name, group);
  }
  return used;
}

/// Engines ask what three projections of an expert are, build one module for all experts of the
/// layer, and refuse groups that differ in any argument.
void experts_agree(const RuleInput& input) {
  std::map<std::string_view, std::pair<const ConfigGroup*, std::string_view>> first_of;
  for (const LinearModule& module : input.facts.modules) {
    const std::string_view experts = formats::experts_of(module.name);
    const ConfigGroup* group = group_named(input, module.name);
    if (experts.empty() || group == nullptr) continue;
    const auto& [first, of] = first_of.try_emplace(experts, group, module.name).first->second;
    const auto differs = [&, first = first](const char* key) {
      return json_member(*first->json, key) != json_member(*group->json, key);
    };
    if (first != group && (differs("weights") || differs("input_activations")))
      input.report_kind(*module.tensor, kMismatch,
                        "falls to config_groups.{}, '{}' of the same experts to {}, whose "
                        "arguments differ (encode all of them alike)",
                        group->name, of, first->name);
  }
}

void group_keys(const RuleInput& input) {
  for (const ConfigGroup& group : groups_of(input)) {
    for (const auto& [where, key] : unknown_keys(group))
      input.report_config(kUnsupported, "{} has a key '{}' that loaders refuse (remove it)", where,
                          key);
  }
}

void format_known(const RuleInput& input) {
  const auto judge = [&](const std::string& format, const std::string& where) {
    if (!format.empty() && !is_known_format(input, format))
      input.report_config(kUnsupported, "{} is '{}', which no loader knows", where, format);
  };
  judge(top_format(input), "quantization_config.format");
  for (const ConfigGroup& group : groups_of(input))
    judge(group.format, fmt::format("config_groups.{}.format", group.name));
  if (!top_format(input).empty()) return;
  // Engines choose the scheme of codes of 8 bits, and of INT4, by it.
  for (const ConfigGroup& group : groups_of(input)) {
    if (!group.format.empty() || !group.scheme) continue;
    const SchemeFacts& scheme = scheme_facts(*group.scheme);
    const StorageRow* row = find_storage(input.dialect(), scheme.id);
    const bool is_by_format =
        has_int4_codes(scheme) || (scheme.code_bits == 8 && scheme.id != SchemeId::kMxfp8);
    if (row != nullptr && is_by_format)
      input.report_config(kNotFound,
                          "neither quantization_config nor config_groups.{} has a format ({} is "
                          "that of {}; ingot repair adds it)",
                          group.name, row->config_name, scheme.name);
  }
}

void format_agrees(const RuleInput& input) {
  const std::string top = top_format(input);
  std::vector<std::string> formats;
  for (const ConfigGroup& group : groups_of(input)) {
    if (!group.format.empty()) formats.push_back(group.format);
    // A group that names none has that of the whole.
    const std::string& format = group.format.empty() ? top : group.format;
    if (!group.scheme || !is_known_format(input, format)) continue;
    const std::string_view wanted = find_storage(input.dialect(), *group.scheme)->config_name;
    if (format_fits(wanted, format)) continue;
    if (format == kPacked && is_of_packed_bytes(group)) continue;
    input.report_config(kMismatch, "config_groups.{} is in format {}, but its weights are {}: {}",
                        group.name, format, scheme_facts(*group.scheme).name, wanted);
  }
  formats::sort_unique(formats);
  if (formats.empty() || !is_known_format(input, top)) return;
  const std::string wanted = formats.size() == 1 ? formats.front() : std::string(kMixed);
  // Beside groups with formats of their own it is that of the experts to SGLang, and of none to
  // others.
  const bool is_one_of_several =
      formats.size() > 1 && std::binary_search(formats.begin(), formats.end(), top);
  if (top != wanted && top != kMixed && !is_one_of_several)
    input.report_config(kMismatch, "quantization_config.format is {}, its groups make it {}", top,
                        wanted);
}

void targets(const RuleInput& input) {
  for (const std::string& fault : input.facts.group_faults)
    input.report_config(kCorrupt, "quantization_config {}", fault);
  if (!input.facts.groups) return;
  for (const LinearModule& module : input.facts.modules) {
    if (!module.is_quantized) continue;
    const std::string fault = group_fault(*input.facts.groups, module.name, *module.tensor);
    if (!fault.empty()) input.report_kind(*module.tensor, kMismatch, "{}", fault);
  }
}

void static_input_scale(const RuleInput& input, const LinearModule& module) {
  const ConfigGroup* group = module.is_quantized ? group_named(input, module.name) : nullptr;
  if (group != nullptr && group->activations == Activations::kStatic &&
      !module.tensor->encoding.stored.has(Part::kInputScale))
    input.report_kind(*module.tensor, kMissingTensor,
                      "has no input scale, but the activations of config_groups.{} are static",
                      group->name);
}

void activations(const RuleInput& input) {
  for (const auto& [name, group] : used_groups(input)) {
    const std::string fault = activations_fault(*group);
    if (!fault.empty())
      input.report_config(kMismatch,
                          "config_groups.{}.input_activations: no loader of {} computes so ({})",
                          name, scheme_facts(*group->scheme).name, fault);
  }
}

void arguments(const RuleInput& input) {
  for (const auto& [name, group] : used_groups(input)) {
    for (const std::string& fault : argument_faults(*group))
      input.report_config(kMismatch, "config_groups.{}.{}", name, fault);
  }
}

void transforms(const RuleInput& input) {
  for (const std::string_view key : {"sparsity_config", "transform_config"}) {
    const Json& value = json_member(input.block(), key);
    if (formats::says_nothing(value) || text_at(value, "format") == "dense") continue;
    // A transform without groups transforms nothing.
    const Json& groups = json_member(value, "config_groups");
    if (groups.is_object() && groups.empty()) continue;
    input.report_config(
        kUnsupported,
        "quantization_config.{} is {}: the weights are {} (take the checkpoint that it was made "
        "from)",
        key, config_text(value),
        key == "sparsity_config"
            ? "packed as sparse ones, which loaders would unpack"
            : "stored under transforms, as Hadamard's, which loaders would undo as they compute");
  }
}

void joined_scales(const RuleInput& input, const LogicalTensor& tensor) {
  if (!is_quantized(tensor) || !engines::is_joined_number(formats::PartShape::kOne, tensor.rule))
    return;
  tensor.encoding.stored.for_each([&](Part, std::uint32_t index) {
    const StoredTensor& stored = input.checkpoint.stored()[index];
    if (stored.shape == Shape{1})
      input.report_kind(tensor, stored, kShapeMismatch,
                        "has shape [1], and SGLang 0.5.23 joins it with the one of q_a_proj or "
                        "kv_a_proj into a parameter of one number (shape [] loads)");
  });
}

constexpr std::string_view kCt = "compressed-tensors";

constexpr LoaderRule kCompressedTensorsRows[] = {
    {"ct.scale-shape", kCt, "all", kError,
     "scales have the dimensions of the parameter that they are copied into", part_shapes},
    {"ct.config-group-keys", kCt, "all", kError,
     "groups of config_groups, and the arguments in them, have known keys only", group_keys},
    {"ct.format-known", kCt, "all", kError,
     "formats are ones that compressed-tensors defines, and groups have one where engines ask for "
     "it",
     format_known},
    {"ct.format-agrees", kCt, "all", kError,
     "the format of a group is that of its weights' scheme, that of the whole follows",
     format_agrees},
    {"ct.targets", kCt, "all", kError,
     "every quantized module is not ignored and first matches a target of its scheme", targets},
    {"ct.experts-agree", kCt, "vLLM, SGLang", kError,
     "groups of the routed experts of a layer have the same arguments", experts_agree},
    {"ct.ignore", kCt, "all", kError,
     "every plain module that engines build quantizable is ignored or matches no target",
     taken_in<true>},
    {"ct.ignore-never-quantized", kCt, "transformers and other engines that build them as Linear",
     kWarning, "head, router, eh_proj and weights_proj are ignored or match no target",
     taken_in<false>},
    {"ct.tied-target", kCt, "vLLM", kWarning,
     "no target names the head of a tied model, unless it is ignored", tied_target, kAnyScheme,
     false, kIsAllowable},
    {"ct.mtp-names", kCt, "vLLM with speculative decoding", kWarning,
     "modules of multi-token prediction layers match the same under vLLM's names",
     draft_names<engines::Engine::kVllm>},
    {"ct.static-input-scale", kCt, "all", kError,
     "weights whose activations are static have an input scale", static_input_scale},
    {"ct.activations", kCt, "all", kError,
     "input_activations are of a kind that loaders of the group's weights compute", activations},
    {"ct.arguments", kCt, "all", kError,
     "arguments of weights are those of their scheme, and outputs are not quantized", arguments},
    {"ct.transforms", kCt, "all", kError, "the config calls no weight sparse or transformed",
     transforms},
    {"ct.joined-scales", kCt, "SGLang", kWarning,
     "scales of q_a_proj and kv_a_proj that are one number have no dimensions", joined_scales},
    {"ct.block-target", kCt, "SGLang", kWarning,
     "the group with target Linear has blocks if joined weights or kv_b_proj are FP8 in blocks, "
     "and "
     "only then if kv_b_proj has 8 bits without them",
     block_target},
    {"ct.plain-module", kCt, "all", kError,
     "embedding, head, router, norms, eh_proj and weights_proj are not quantized", plain_module,
     kAnyScheme, false, kIsAllowable},
};

}  // namespace

const RuleTable kCompressedTensorsRules = kCompressedTensorsRows;

}  // namespace ingot::check
