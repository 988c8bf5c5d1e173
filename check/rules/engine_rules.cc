#include "check/rules/rule_input.h"
#include "formats/dialect/dialect_words.h"
#include "formats/storage/encoding.h"
#include "shard/align/cut_need.h"

// How engines build their modules: what they refuse of schemes and activations, what they never
// build quantized, what they fuse, and where ranks of tensor parallelism cut.

namespace ingot::check {

using engines::Engine;
using engines::EngineLimit;
using formats::Encoding;

namespace {

constexpr std::string_view kMinimax = "minimax_m3_nvfp4";

/// Reports the limits that weights meet, of the row's engine or of any, for which
/// `is_meant(limit, is_by_all)` holds: those by which every engine refuses the checkpoint have a
/// rule of their own.
template <typename IsMeant>
void report_limits(const RuleInput& input, const IsMeant& is_meant) {
  const EngineLimitsMet& limits = input.facts.engine_limits();
  for (const EngineLimitsMet::LimitHit& hit : limits.hits()) {
    const EngineLimit& limit = *hit.limit;
    const bool is_by_all = limits.is_refused_by_all() && limit.is_refusal() && limit.is_of_form();
    const bool is_of_row = !input.row.engine || hit.engine->engine == input.row.engine;
    if (is_of_row && is_meant(limit, is_by_all))
      input.report(violation(kUnsupported, "", hit.first,
                             limit_hit_text(hit, input.options.tensor_parallel)));
  }
}

void refused_by_all(const RuleInput& input) {
  report_limits(input, [](const EngineLimit&, bool is_by_all) { return is_by_all; });
}

void refused_by_one(const RuleInput& input) {
  // The rule fp8.merged-partition tells of blocks that are cut.
  report_limits(input, [](const EngineLimit& limit, bool is_by_all) {
    return limit.is_refusal() && !is_by_all && limit.scope != engines::EngineScope::kCutBlocks;
  });
}

void right_with_options(const RuleInput& input) {
  report_limits(input, [](const EngineLimit& limit, bool) { return !limit.option.empty(); });
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

// Fused weights with several global scales; `fact` says what loaders make of them.
void report_fused_globals(const RuleInput& input, std::string_view fact) {
  const auto global_of = [&](const LogicalTensor& tensor) {
    const StoredTensor* stored = input.part_of(tensor, Part::kGlobal);
    const auto global = stored == nullptr ? std::nullopt : input.first_number(*stored);
    // The rule nvfp4.global-values is about bad ones.
    return global && is_bad_scale(*global) ? std::nullopt : global;
  };
  for_each_torn(input, formats::ExpertJoin::kExpert, global_of,
                [&](const LogicalTensor& first, float its, const LogicalTensor& tensor, float own) {
                  input.report_at(
                      *input.part_of(tensor, Part::kGlobal), kMismatch,
                      "is {}, that of '{}', with which it is fused, is {}: {} (quantize them "
                      "together)",
                      own, first.name, its, fact);
                });
}

void fused_global(const RuleInput& input) {
  if (input.dialect().name != kMinimax)
    report_fused_globals(input, "loaders keep one of them for both");
}

// SGLang 0.5.23's minimax_m3_nvfp4.py: kernels of Blackwell take a scale of gates and one of ups,
// Marlin on Hopper that of gates.
void fused_global_on_hopper(const RuleInput& input) {
  if (input.dialect().name == kMinimax)
    report_fused_globals(input, "on Hopper (compute capability 9.0) SGLang keeps one for both");
}

// vLLM's auto_awq.py:732 and SGLang's moe_wna16.py:395: kernels of experts get no qzeros then, and
// take 8. AWQ's own kernels of other layers read them.
void unsaid_zero_points(const RuleInput& input) {
  if (!input.facts.says_no_zero_points) return;
  std::vector<const StoredTensor*> zeros;
  for (const LogicalTensor& tensor : input.weights()) {
    const StoredTensor* stored = input.part_of(tensor, Part::kZeroPoint);
    if (stored != nullptr && is_routed_expert(role_of(tensor)) && input.may_read(*stored))
      zeros.push_back(stored);
  }
  const auto words_but_eights = [](const StoredTensor&, std::span<const std::byte> bytes) {
    constexpr std::byte kEights{0x88};
    OddValues odd{.total = bytes.size()};
    const auto first = std::ranges::find_if_not(bytes, [](std::byte b) { return b == kEights; });
    if (first == bytes.end()) return odd;
    odd.n = 1;
    odd.first = static_cast<std::uint64_t>(first - bytes.begin());
    return odd;
  };
  const bool is_auto_round = formats::is_auto_round(formats::method_of(input.config()));
  input.report_odd(
      find_odd(input.search(), zeros, words_but_eights), kMismatch, [&](const OddValues&) {
        return fmt::format(
            "holds zero points other than 8, but config.json says {}: loaders of experts read none "
            "then, and take 8 (put {})",
            is_auto_round ? "sym true" : "zero_point false",
            is_auto_round ? "sym false" : "zero_point true");
      });
}

void cut_at_group_edge(const RuleInput& input, const LogicalTensor& tensor) {
  const auto ranks = static_cast<std::uint32_t>(input.options.tensor_parallel);
  // A rank's weights have been cut already; engines pad the vocabulary.
  if (ranks < 2 || input.checkpoint.slicing() != nullptr || !is_quantized(tensor)) return;
  if (tensor.rule == nullptr || tensor.rule->cut == formats::Cut::kVocab) return;
  ErrorList faults;
  const shard::TensorCut cut = shard::cut_of(
      tensor, input.config(), {.topology = shard::make_topology(ranks, 1, {}, 1)}, faults);
  for (const Error& fault : faults.errors()) {
    // A fault of heads; faults of the shape have a rule of their own.
    if (fault.code() == kInvalidArgument)
      input.report_kind(tensor, kShapeMismatch, "{}", fault.message());
  }
  if (!faults.empty() || cut.n < 2 ||
      !cut.sections.divide(tensor.shape[cut_dimension(tensor.shape, cut.axis)]))
    return;
  const Encoding& encoding = tensor.encoding;
  const auto& groups = input.facts.groups;
  const bool has_row_scales = groups && groups->has_row_scales(formats::module_name(tensor.name));
  shard::CutNeed need =
      shard::need_of({.tensor = &tensor,
                      .scheme = encoding.scheme,
                      .group = {encoding.block_rows, has_row_scales ? 0 : encoding.block_cols},
                      .has_zero_points = encoding.stored.has(Part::kZeroPoint),
                      .cut = cut});
  if (need.fits()) return;
  while (need.n > 1 && !need.fits()) --need.n;
  input.report_kind(tensor, kShapeMismatch,
                    "has {} {}, which {} ranks cannot cut at multiples of {} (at most {}; experts "
                    "are not cut under expert parallelism)",
                    need.width, need.along_rows ? "rows" : "columns", ranks, need.unit, need.n);
}

constexpr LoaderRule kEngineRows[] = {
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
     "weights that a loader fuses have one global scale", fused_global, kAnyScheme, kReadsValues,
     false, std::nullopt, "", nullptr, kIsSilent},
    {"minimax.fused-global", "", "SGLang", kWarning,
     "weights that are fused on Hopper have one global scale", fused_global_on_hopper, kAnyScheme,
     kReadsValues, false, std::nullopt, "", nullptr, kIsSilent},
    {"awq.unsaid-zeros", "", "vLLM, SGLang", kError,
     "routed experts have zero points other than 8 only where the config says that there are some",
     unsaid_zero_points, kAnyScheme, kReadsValues, false, std::nullopt, "", nullptr, kIsSilent},
    {"cut.group-edge", "", "vLLM, SGLang", kWarning,
     "ranks of tensor parallelism, when their number is given, divide heads and cut at the edges "
     "of groups that share a scale",
     cut_at_group_edge},
};

}  // namespace

const RuleTable kEngineRules = kEngineRows;

void plain_module(const RuleInput& input, const LogicalTensor& tensor) {
  if (tensor.rule == nullptr || !is_quantized(tensor)) return;
  const Role role = role_of(tensor);
  // vLLM's vocab_parallel_embedding.py:515; SGLang's compressed_tensors.py:1138.
  if (role == Role::kHead && tensor.encoding.scheme == SchemeId::kFp8Block)
    return input.report_kind(tensor, kDtypeMismatch,
                             "is fp8-block: loaders cut heads by rows, and so their scales (give "
                             "it fp8-channel, or leave it plain)");
  const auto& groups = input.facts.groups;
  const bool is_named =
      groups && groups->named_target(formats::module_name(tensor.name)) != nullptr;
  if (role == Role::kHead && groups && !is_named)
    return input.report_kind(tensor, kDtypeMismatch,
                             "is {}, but no target of config_groups is its name, and so loaders "
                             "build it unquantized (ingot repair adds it)",
                             facts_of(tensor).name);
  // vLLM looks words up in packed integers without zero points; its limits say in which.
  const bool is_packed =
      tensor.encoding.scheme == SchemeId::kInt4Group || formats::is_packed_int8(tensor.encoding);
  if (role == Role::kEmbedding && is_named && is_packed &&
      !tensor.encoding.stored.has(Part::kZeroPoint))
    return;
  if (can_be_quantized(input.dialect(), *tensor.rule)) return;
  // Engines of some dialects ask the config for heads as they do for linears, and some families of
  // users say of no weight that it is quantized.
  const bool is_asked_for = tensor.rule->silence == formats::Silence::kHead &&
                            is_quantized_by_silence(input.dialect(), *tensor.rule);
  if (!is_asked_for &&
      std::ranges::any_of(input.checkpoint.family().rules, &TensorRule::fp8_by_default))
    input.report_kind(tensor, kDtypeMismatch, "is {}, but loaders build this module unquantized",
                      facts_of(tensor).name);
}

}  // namespace ingot::check
