#include "check/rules/rule_input.h"
#include "formats/relaid/input_major_parts.h"
#include "formats/relaid/relaid_codes.h"

// How engines build their modules: what they refuse of schemes and activations, what they never
// build quantized, what they fuse, and where ranks of tensor parallelism cut.

namespace ingot::check {

using engines::Engine;
using formats::Cut;

namespace {

void report_limit(const RuleInput& input, const EngineLimitsMet::Met& met) {
  input.report(
      violation(kUnsupported, "", met.first, met_text(met, input.options.tensor_parallel)));
}

void refused_by_all(const RuleInput& input) {
  const EngineLimitsMet& limits = input.facts.engine_limits();
  for (const EngineLimitsMet::Met& met : limits.met()) {
    if (limits.is_refused_by_all() && met.limit->is_refusal() && met.limit->is_of_form())
      report_limit(input, met);
  }
}

void refused_by_one(const RuleInput& input) {
  const EngineLimitsMet& limits = input.facts.engine_limits();
  for (const EngineLimitsMet::Met& met : limits.met()) {
    // The rule fp8.merged-partition tells of those.
    if (met.limit->scope == engines::EngineScope::kCutBlocks) continue;
    const bool is_told = limits.is_refused_by_all() && met.limit->is_of_form();
    if (met.engine->engine == input.row.engine && met.limit->is_refusal() && !is_told)
      report_limit(input, met);
  }
}

void right_with_options(const RuleInput& input) {
  for (const EngineLimitsMet::Met& met : input.facts.engine_limits().met()) {
    if (met.engine->engine == input.row.engine && !met.limit->option.empty())
      report_limit(input, met);
  }
}

// SGLang 0.5.23: w8a8_int8.py and blockwise_int8.py:114 build all experts in INT8.
void plain_int8_experts(const RuleInput& input) {
  const auto is_int8 = [](const LogicalTensor& tensor) {
    return (tensor.encoding.scheme == SchemeId::kInt8Channel ||
            tensor.encoding.scheme == SchemeId::kInt8Block) &&
           !formats::is_packed_int8(tensor.encoding);
  };
  const auto is_expert = [](const LogicalTensor& tensor) {
    return is_routed_expert(role_of(tensor));
  };
  // compressed-tensors without INT8 experts is loaded by another scheme.
  const bool has_them = std::ranges::any_of(input.weights(), [&](const LogicalTensor& tensor) {
    return is_int8(tensor) && (is_expert(tensor) || tensor.encoding.scheme == SchemeId::kInt8Block);
  });
  if (!has_them) return;
  for (const LogicalTensor& tensor : input.weights()) {
    if (is_expert(tensor) && !is_quantized(tensor))
      input.report_kind(
          tensor, kMismatch,
          "is plain among INT8 experts, and SGLang builds all experts in INT8, whatever the list "
          "says (quantize it, or none of the experts with int8-channel)");
  }
}

void fused_scheme(const RuleInput& input) {
  const auto scheme_of = [](const LogicalTensor& tensor) {
    return std::optional(tensor.encoding.scheme);
  };
  for_each_torn(
      input, formats::ExpertJoin::kMatrix, scheme_of,
      [&](const LogicalTensor& first, SchemeId its, const LogicalTensor& tensor, SchemeId own) {
        input.report(input.violation_at(
            input.codes_of(tensor), kMismatch,
            fmt::format("is {}, but is fused with '{}', which is {}", scheme_facts(own).name,
                        first.name, scheme_facts(its).name),
            tensor.name));
      });
}

void fused_global(const RuleInput& input) {
  const auto global_of = [&](const LogicalTensor& tensor) {
    const StoredTensor* stored = input.part_of(tensor, Part::kGlobal);
    const auto global = stored == nullptr ? std::nullopt : first_scale(input.checkpoint, *stored);
    // The rule nvfp4.global-values is about bad ones.
    return global && is_bad_scale(*global) ? std::nullopt : global;
  };
  for_each_torn(input, formats::ExpertJoin::kExpert, global_of,
                [&](const LogicalTensor& first, float its, const LogicalTensor& tensor, float own) {
                  input.report_at(
                      *input.part_of(tensor, Part::kGlobal), kMismatch,
                      "is {}, that of '{}', with which it is fused, is {}: loaders keep one of "
                      "them for both (quantize them together)",
                      own, first.name, its);
                });
}

/// The size of a dimension, and the number that a rank's share of it must be a multiple of.
struct CutDimension {
  std::uint64_t size = 0, step = 1;
  std::string_view word;

  [[nodiscard]] bool can_be_cut(std::uint64_t ranks) const {
    return size % ranks == 0 && size / ranks % step == 0;
  }
};

std::optional<CutDimension> cut_dimension(const RuleInput& input, const LogicalTensor& tensor) {
  if (tensor.rule == nullptr || tensor.shape.size() < 2) return std::nullopt;
  if (is_expert_bias(tensor.rule->role)) return std::nullopt;
  const SchemeFacts& scheme = facts_of(tensor);
  const bool is_turned = tensor.stack == formats::StackOrder::kInputMajor;
  const std::size_t outputs = tensor.shape.size() - (is_turned ? 1 : 2);
  switch (tensor.rule->cut) {
    case Cut::kColumn: {
      // Groups of columns do not mind where rows are cut.
      std::uint64_t rows = tensor.shape[outputs];
      if (tensor.rule->role == Role::kExpertsGateUp) rows /= 2;
      return CutDimension{.size = rows,
                          .step = scheme.group_rows > 1 ? tensor.encoding.block_rows : 1,
                          .word = "rows"};
    }
    case Cut::kRow: {
      // One scale a row has no edges but those of the words that codes are packed into.
      const auto& groups = input.facts.groups;
      const bool has_row_scales = groups && groups->has_row_scales(module_name(tensor.name));
      const std::uint64_t group =
          has_row_scales ? formats::kCodesPerWord : tensor.encoding.block_cols;
      return CutDimension{.size = tensor.shape[tensor.shape.size() - (is_turned ? 2 : 1)],
                          .step = scheme.group_cols > 1 ? group : 1,
                          .word = "columns"};
    }
    default:
      return std::nullopt;
  }
}

void cut_at_group_edge(const RuleInput& input, const LogicalTensor& tensor) {
  const std::uint64_t ranks = input.options.tensor_parallel;
  // A rank's weights have been cut already.
  if (ranks < 2 || input.checkpoint.slicing() != nullptr || !is_quantized(tensor)) return;
  const std::optional<CutDimension> dimension = cut_dimension(input, tensor);
  if (!dimension || dimension->step == 0 || dimension->can_be_cut(ranks)) return;
  std::uint64_t largest = std::min(ranks - 1, std::max<std::uint64_t>(dimension->size, 1));
  while (largest > 1 && !dimension->can_be_cut(largest)) --largest;
  input.report_kind(tensor, kShapeMismatch,
                    "has {} {}, which {} ranks cannot cut at multiples of {} (at most {}; experts "
                    "are not cut under expert parallelism)",
                    dimension->size, dimension->word, ranks, dimension->step, largest);
}

constexpr LoaderRule kRules[] = {
    {"engine.refused-by-all", "", "vLLM, SGLang", kError,
     "vLLM or SGLang loads every weight in its scheme, with its activations", refused_by_all,
     kAnyScheme, false, kIsAllowable},
    {"engine.refused-by-vllm", "", "vLLM", kWarning,
     "vLLM loads every weight in its scheme, with its activations", refused_by_one, kAnyScheme,
     false, kIsAllowable, Engine::kVllm},
    {"engine.refused-by-sglang", "", "SGLang", kWarning,
     "SGLang loads every weight in its scheme, with its activations", refused_by_one, kAnyScheme,
     false, kIsAllowable, Engine::kSglang},
    {"engine.options-of-vllm", "", "vLLM", kWarning,
     "vLLM loads every weight correctly with any options", right_with_options, kAnyScheme, false,
     false, Engine::kVllm},
    {"engine.options-of-sglang", "", "SGLang", kWarning,
     "SGLang loads every weight correctly with any options", right_with_options, kAnyScheme, false,
     false, Engine::kSglang},
    {"int8.plain-experts", "", "SGLang", kWarning,
     "if some experts or blocks are INT8, all experts are", plain_int8_experts},
    {"fused.scheme", "", "all", kError, "weights that a loader fuses have one scheme",
     fused_scheme},
    {"nvfp4.fused-global", "", "vLLM, SGLang", kError,
     "weights that a loader fuses have one global scale", fused_global, kAnyScheme, kReadsValues},
    {"cut.group-edge", "", "vLLM, SGLang", kWarning,
     "ranks of tensor parallelism, when their number is given, cut at the edges of "
     "groups that share a scale",
     cut_at_group_edge},
};

}  // namespace

const RuleTable kEngineRules = kRules;

void plain_module(const RuleInput& input, const LogicalTensor& tensor) {
  if (tensor.rule == nullptr || !is_quantized(tensor) ||
      can_be_quantized(input.dialect(), *tensor.rule))
    return;
  // Engines of some dialects ask the config for heads as they do for linears.
  const bool is_head = tensor.rule->silence == formats::Silence::kHead;
  if (!is_head || !is_quantized_by_silence(input.dialect(), *tensor.rule))
    input.report_kind(tensor, kDtypeMismatch, "is {}, but loaders build this module unquantized",
                      facts_of(tensor).name);
}

}  // namespace ingot::check
