#include <map>

#include "check/rules/rule_input.h"
#include "formats/dialect/dialect_words.h"

// Ascend: quant_model_description.json gives every tensor a type.

namespace ingot::check {
namespace {

using formats::DescribedType;

constexpr const char* kModelDescription = "quant_model_description.json";

// Keys that are no tensors.
constexpr std::array<std::string_view, 10> kFacts = {
    "model_quant_type",   "version",          "group_size",    "metadata",
    "optional",           "kv_cache_type",    "kv_quant_type", "fa_quant_type",
    "indexer_quant_type", "reduce_quant_type"};

// The type of a weight in the description, or empty.
std::string type_of(const RuleInput& input, const LogicalTensor& tensor) {
  const auto found = input.facts.described.find(input.codes_of(tensor).name);
  return found != input.facts.described.end() && found->second->is_string()
             ? found->second->get<std::string>()
             : std::string();
}

void slim_description_present(const RuleInput& input) {
  const bool is_of_ascend = std::ranges::any_of(input.weights(), [](const LogicalTensor& tensor) {
    const formats::StoredParts& parts = tensor.encoding.stored;
    return parts.has(Part::kOffset) || parts.has(Part::kDeqScale);
  });
  // Under a quantization_config they are parts of another dialect, or none.
  if (!is_of_ascend || input.said() != nullptr || input.checkpoint.has_file(kModelDescription))
    return;
  input.report_file(kModelDescription, kNotFound,
                    "is missing, but there are weights as msmodelslim writes them (is it called by "
                    "another name? ingot repair makes one)");
}

void no_quantization_config(const RuleInput& input) {
  const QuantizationConfig* said = input.said();
  if (said == nullptr || said->quant_method.empty() ||
      !input.checkpoint.has_file(kModelDescription))
    return;
  input.report_config(
      kMismatch,
      "has quant_method {} next to {}, which SGLang reads in its place (ingot repair "
      "leaves the one that is meant)",
      said->quant_method, kModelDescription);
}

void model_type(const RuleInput& input) {
  const Json& description = input.checkpoint.description();
  if (description.is_object() && !json_member(description, "model_quant_type").is_string())
    input.report_file(kModelDescription, kNotFound, "has no model_quant_type");
}

void description_complete(const RuleInput& input) {
  if (!input.checkpoint.description().is_object()) return;
  std::uint64_t n = 0;
  const StoredTensor* first = nullptr;
  for (const StoredTensor& tensor : input.checkpoint.stored()) {
    if (input.facts.described.contains(tensor.name)) continue;
    if (n++ == 0) first = &tensor;
  }
  if (n == 0) return;
  input.report_at(*first, kNotFound, "is not in {} ({} tensor{} in all; list every tensor)",
                  kModelDescription, n, n == 1 ? "" : "s");
}

void types_known(const RuleInput& input) {
  const Json& description = input.checkpoint.description();
  if (!description.is_object()) return;
  std::map<std::string, std::pair<std::string, std::uint64_t>> unknown;  // type: first key, count
  for (const auto& [key, value] : description.items()) {
    if (is_in(kFacts, key)) continue;
    const std::string type = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_string() && formats::find_described_type(type) != nullptr) continue;
    ++unknown.try_emplace(type, key, 0).first->second.second;
  }
  for (const auto& [type, where] : unknown) {
    input.report(violation(
        kUnsupported, kModelDescription, where.first,
        fmt::format("is of type '{}', which no loader knows ({} in all)", type, where.second)));
  }
}

void types_agree(const RuleInput& input, const LogicalTensor& tensor) {
  const DescribedType* type = formats::find_described_type(type_of(input, tensor));
  if (type == nullptr) return;  // other rules report an unknown type
  const bool is_agreed =
      type->scheme && (is_quantized(tensor) ? tensor.encoding.scheme == type->scheme
                                            : !scheme_facts(*type->scheme).quantized);
  if (!is_agreed)
    input.report_kind(tensor, kMismatch, "is {}, but of type {} in {}", facts_of(tensor).name,
                      type->name, kModelDescription);
}

void fused_types(const RuleInput& input) {
  const auto told_type = [&](const LogicalTensor& tensor) {
    std::string type = type_of(input, tensor);
    return type.empty() ? std::nullopt : std::optional(std::move(type));
  };
  for_each_torn(input, formats::ExpertJoin::kMatrix, told_type,
                [&](const LogicalTensor& first, const std::string& its, const LogicalTensor& tensor,
                    const std::string& own) {
                  // Another type of the same scheme; schemes are fused.scheme's matter.
                  if (first.encoding.scheme == tensor.encoding.scheme)
                    input.report_at(input.codes_of(tensor), kMismatch,
                                    "is of type {}, but is fused with '{}' of type {}", own,
                                    first.name, its);
                });
}

void static_parts(const RuleInput& input, const LogicalTensor& tensor) {
  const DescribedType* type = formats::find_described_type(type_of(input, tensor));
  if (type == nullptr || !is_quantized(tensor)) return;
  std::vector<std::string_view> missing;
  for (const PartRow& row : type->needs) {
    if (!tensor.encoding.stored.has(row.part)) missing.push_back(row.suffix.substr(1));
  }
  if (!missing.empty())
    input.report_kind(tensor, kMissingTensor, "is of type {} and has no {}", type->name,
                      fmt::join(missing, ", "));
}

void deq_scale_dtype(const RuleInput& input, const LogicalTensor& tensor) {
  const std::string& model = input.config().dtype;
  const StoredTensor* scale = input.part_of(tensor, Part::kDeqScale);
  if (scale == nullptr || (model != "bfloat16" && model != "float16")) return;
  const DType wanted = model == "float16" ? DType::kI64 : DType::kF32;
  if (scale->dtype != wanted)
    input.report_kind(tensor, *scale, kDtypeMismatch, "is {}, for a model in {} it must be {}",
                      dtype_name(scale->dtype), model, dtype_name(wanted));
}

void kv_b_float(const RuleInput& input, const LogicalTensor& tensor) {
  if (role_of(tensor) == Role::kKvbProj && is_quantized(tensor))
    input.report_kind(tensor, kUnsupported,
                      "is {}, but is taken apart at load and kept FLOAT by every recipe",
                      facts_of(tensor).name);
}

constexpr std::string_view kModelslim = "modelslim";

constexpr LoaderRule kModelslimRows[] = {
    {"modelslim.description-present", "", "all", kError,
     "weights as msmodelslim writes them have a quant_model_description.json",
     slim_description_present},
    {"modelslim.no-quantization-config", "", "SGLang", kError,
     "with quant_model_description.json, config.json has no quant_method", no_quantization_config},
    {"modelslim.model-type", kModelslim, "msmodelslim", kWarning, "model_quant_type exists",
     model_type},
    {"modelslim.description-complete", kModelslim, "all", kError,
     "every stored tensor is in the description", description_complete},
    {"modelslim.types-known", kModelslim, "all", kError, "every type of the description is known",
     types_known},
    {"modelslim.types-agree", kModelslim, "all", kError, "a weight is quantized as its type says",
     types_agree},
    {"modelslim.fused-types", kModelslim, "all", kError,
     "weights that a loader fuses have one type", fused_types},
    {"modelslim.static-parts", kModelslim, "all", kError,
     "a weight has the parts that its type needs", static_parts},
    {"modelslim.scale-shape", kModelslim, "all", kError,
     "scales have the dimensions of the parameter that they are copied into", part_shapes},
    {"modelslim.deq-scale-dtype", kModelslim, "all", kError,
     "deq_scale is F32 in BF16 models and I64 in F16 models", deq_scale_dtype},
    {"modelslim.kv-b-float", kModelslim, "vLLM-Ascend, MindIE", kWarning,
     "kv_b_proj is not quantized", kv_b_float},
    {"modelslim.plain-module", kModelslim, "all", kError,
     "embedding, head, router, norms, eh_proj and weights_proj are not quantized", plain_module,
     kAnyScheme, false, kIsAllowable},
};

}  // namespace

const RuleTable kModelslimRules = kModelslimRows;

}  // namespace ingot::check
