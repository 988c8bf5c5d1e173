#include <algorithm>
#include <array>
#include <map>
#include <unordered_map>

#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"

// Ascend: quant_model_description.json gives every tensor a type.

namespace ingot::formats::rule_bodies {
namespace {

constexpr const char* kFile = "quant_model_description.json";

// Keys that are no tensors.
constexpr std::array<std::string_view, 10> kFacts = {
    "model_quant_type",   "version",          "group_size",    "metadata",
    "optional",           "kv_cache_type",    "kv_quant_type", "fa_quant_type",
    "indexer_quant_type", "reduce_quant_type"};

constexpr std::string_view kFloat = "FLOAT";
constexpr std::string_view kStatic = "W8A8";
constexpr std::string_view kDynamic = "W8A8_DYNAMIC";
constexpr std::string_view kBoth = "W8A8_MIX";

struct Type {
  std::string_view name;
  std::optional<SchemeId> scheme;  ///< of quantized weights that we read
};
constexpr std::array kTypes = {
    Type{kFloat, std::nullopt},
    Type{kStatic, SchemeId::kInt8Channel},
    Type{kDynamic, SchemeId::kInt8Channel},
    Type{kBoth, SchemeId::kInt8Channel},
    Type{"W8A16", SchemeId::kInt8Channel},
    Type{"W16A16S", std::nullopt},
    Type{"W8A8_MXFP8", std::nullopt},
    Type{"WFP8AFP8_DYNAMIC", std::nullopt},
    Type{"W4A8_DYNAMIC", std::nullopt},
    Type{"W4A8_MXFP", std::nullopt},
    Type{"W4A4_DYNAMIC", std::nullopt},
    Type{"W4A4_MXFP4", std::nullopt},
    Type{"W4A16", std::nullopt},
};

const Type* find_type(std::string_view name) {
  for (const Type& type : kTypes) {
    if (type.name == name) return &type;
  }
  return nullptr;
}

/// The description by tensor. JSON objects here are lists in the order of the file, and this one
/// has a line per tensor, so looking names up in it would take the square of their number.
class TensorTypes {
 public:
  explicit TensorTypes(const Checkpoint& checkpoint) : checkpoint_(checkpoint) {
    const Json& description = checkpoint.description();
    if (!description.is_object()) return;
    for (const auto& [key, value] : description.items()) types_.emplace(key, &value);
  }
  [[nodiscard]] bool has(const std::string& name) const { return types_.contains(name); }
  /// The type of a weight, or empty.
  [[nodiscard]] std::string of(const LogicalTensor& tensor) const {
    const auto found = types_.find(codes_of(checkpoint_, tensor).name);
    return found != types_.end() && found->second->is_string() ? found->second->get<std::string>()
                                                               : std::string();
  }

 private:
  const Checkpoint& checkpoint_;
  std::unordered_map<std::string, const Json*> types_;
};

bool has_description_file(const Checkpoint& checkpoint) {
  return checkpoint.has_file(kFile);
}

Finding in_description(ErrorCode code, std::string_view tensor, std::string message) {
  return violation(code, kFile, tensor, std::move(message));
}

}  // namespace

void modelslim_description_present(const Checkpoint& checkpoint, const RuleOptions&,
                                   const Report& report) {
  const auto tensors = checkpoint.tensors();
  const bool is_of_ascend =
      std::any_of(tensors.begin(), tensors.end(), [](const LogicalTensor& tensor) {
        return tensor.encoding.stored.has(Part::kOffset) ||
               tensor.encoding.stored.has(Part::kDeqScale);
      });
  // Under a quantization_config they are parts of another dialect, or none.
  if (!is_of_ascend || checkpoint.config().quantization || has_description_file(checkpoint)) return;
  report(in_description(ErrorCode::kNotFound, "",
                        "is missing, but there are weights as msmodelslim writes them (is it "
                        "called by another name?)"));
}

void modelslim_no_quantization_config(const Checkpoint& checkpoint, const RuleOptions&,
                                      const Report& report) {
  const auto& quantization = checkpoint.config().quantization;
  if (!quantization || quantization->quant_method.empty() || !has_description_file(checkpoint))
    return;
  report(in_config(ErrorCode::kMismatch,
                   fmt::format("has quant_method {} beside {}, which then is not read (remove "
                               "quantization_config)",
                               quantization->quant_method, kFile)));
}

void modelslim_model_type(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  if (!checkpoint.description().is_object()) return;
  if (checkpoint.description().value("model_quant_type", Json()).is_string()) return;
  report(in_description(ErrorCode::kNotFound, "", "has no model_quant_type"));
}

void modelslim_description_complete(const Checkpoint& checkpoint, const RuleOptions&,
                                    const Report& report) {
  if (!checkpoint.description().is_object()) return;
  const TensorTypes types(checkpoint);
  std::uint64_t n = 0;
  const StoredTensor* first = nullptr;
  for (const StoredTensor& tensor : checkpoint.stored()) {
    if (types.has(tensor.name)) continue;
    if (n++ == 0) first = &tensor;
  }
  if (n == 0) return;
  report(at(checkpoint, *first, ErrorCode::kNotFound,
            fmt::format("is not in {} ({} in all; list every tensor)", kFile,
                        n == 1 ? std::string("1 tensor") : fmt::format("{} tensors", n))));
}

void modelslim_types_known(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const Json& description = checkpoint.description();
  if (!description.is_object()) return;
  std::map<std::string, std::pair<std::string, std::uint64_t>> unknown;  // type: first key, count
  for (const auto& [key, value] : description.items()) {
    if (std::find(kFacts.begin(), kFacts.end(), key) != kFacts.end()) continue;
    const std::string type = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_string() && find_type(type) != nullptr) continue;
    ++unknown.try_emplace(type, key, 0).first->second.second;
  }
  for (const auto& [type, where] : unknown) {
    report(in_description(
        ErrorCode::kUnsupported, where.first,
        fmt::format("is of type '{}', which no loader knows ({} in all)", type, where.second)));
  }
}

void modelslim_types_agree(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const TensorTypes types(checkpoint);
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const std::string name = types.of(tensor);
    const Type* type = find_type(name);
    if (type == nullptr) continue;  // other rows say so
    const SchemeId scheme = tensor.encoding.scheme;
    const bool is_agreed = is_quantized(tensor) ? type->scheme == scheme : type->name == kFloat;
    if (is_agreed) continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
                              fmt::format("is {}, but of type {} in {}", scheme_facts(scheme).name,
                                          name, kFile)));
  }
  found.report(report);
}

void modelslim_fused_types(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  const TensorTypes types(checkpoint);
  std::map<std::string, const LogicalTensor*> first_of;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr) continue;
    const std::string module = fused_module(tensor);
    const std::string type = types.of(tensor);
    if (module.empty() || type.empty()) continue;
    const LogicalTensor* first = first_of.try_emplace(module, &tensor).first->second;
    // Of one scheme and of another type; the scheme is fused.scheme's matter.
    const std::string other = types.of(*first);
    if (other == type || first->encoding.scheme != tensor.encoding.scheme) continue;
    report(at(
        checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMismatch,
        fmt::format("is of type {}, but is fused with '{}' of type {}", type, first->name, other)));
  }
}

void modelslim_static_parts(const Checkpoint& checkpoint, const RuleOptions&,
                            const Report& report) {
  const TensorTypes types(checkpoint);
  struct Need {
    std::string_view type, name;
    Part part;
  };
  constexpr std::array<Need, 9> kNeeds = {{{kStatic, "input_scale", Part::kInputScale},
                                           {kStatic, "input_offset", Part::kInputOffset},
                                           {kStatic, "quant_bias", Part::kQuantBias},
                                           {kStatic, "deq_scale", Part::kDeqScale},
                                           {kDynamic, "weight_scale", Part::kScale},
                                           {kBoth, "input_scale", Part::kInputScale},
                                           {kBoth, "quant_bias", Part::kQuantBias},
                                           {kBoth, "deq_scale", Part::kDeqScale},
                                           {kBoth, "weight_scale", Part::kScale}}};
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const std::string type = types.of(tensor);
    if (!is_quantized(tensor)) continue;
    std::string missing;
    for (const Need& need : kNeeds) {
      if (need.type != type || tensor.encoding.stored.has(need.part)) continue;
      missing += fmt::format("{}{}", missing.empty() ? "" : ", ", need.name);
    }
    if (missing.empty()) continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kMissingTensor,
                              fmt::format("is of type {} and has no {}", type, missing)));
  }
  found.report(report);
}

void modelslim_deq_scale_dtype(const Checkpoint& checkpoint, const RuleOptions&,
                               const Report& report) {
  const std::string& model = checkpoint.config().dtype;
  if (model != "bfloat16" && model != "float16") return;
  const DType wanted = model == "float16" ? DType::kI64 : DType::kF32;
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const StoredTensor* scale = part_of(checkpoint, tensor, Part::kDeqScale);
    if (scale == nullptr || scale->dtype == wanted) continue;
    found.add(tensor.rule, at(checkpoint, *scale, ErrorCode::kDtypeMismatch,
                              fmt::format("is {}, for a model in {} it must be {}",
                                          dtype_name(scale->dtype), model, dtype_name(wanted))));
  }
  found.report(report);
}

void modelslim_kv_b_float(const Checkpoint& checkpoint, const RuleOptions&, const Report& report) {
  FindingsByKind found;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    if (tensor.rule == nullptr || tensor.rule->role != Role::kKvbProj || !is_quantized(tensor))
      continue;
    found.add(tensor.rule, at(checkpoint, codes_of(checkpoint, tensor), ErrorCode::kUnsupported,
                              fmt::format("is {}, but is taken apart at load and kept FLOAT by "
                                          "every recipe",
                                          scheme_facts(tensor.encoding.scheme).name)));
  }
  found.report(report);
}

}  // namespace ingot::formats::rule_bodies
