#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/dialect/dialect.h"

// The weights that an engine's limit is about, by the facts that engines see: role, shape,
// the numbers that share a scale, and the ranks that it is cut for.

namespace ingot::engines {

using formats::Dialect;

/// The weights that an engine's limit is about.
enum class EngineScope : std::uint8_t {
  kAny,
  kExperts,  ///< routed experts, which engines load as one module
  kLinears,  ///< all other linear layers
  // Weights with a property that does not depend on their widths.
  kOrdered,            ///< weights whose columns have an order of groups
  kAsymmetricExperts,  ///< routed experts that have zero points
  kRowScaledExperts,   ///< routed experts that have one scale a row, and no groups
  kJoinedLatents,      ///< q_a_proj and kv_a_proj_with_mqa, which engines load as one module
  kForeignExperts,     ///< routed experts, but for stacks that are plain or in the family's dialect
  kRotated,            ///< q_proj and k_proj, whose rows a loader may turn for its rotary embedding
  kExpertsButK3,       ///< routed experts, but of family kimi_k3, whose loader renames them
  kFreeScaledLinears,  ///< all other linear layers, where scales need not be powers of two
  kInverseNames,       ///< weights with a weight_scale_inv, but not of family ministral3
  kPlainNames,         ///< weights whose scale is called weight_scale
  kPlainNameExperts,   ///< routed experts whose scale is called weight_scale
  kSharedExperts,      ///< shared experts
  kDenseLayers,        ///< MLPs of layers without experts
  kFusedOtherwise,     ///< shared experts that are loaded as routed ones, and stored otherwise
  kFusedInDraft,       ///< shared experts of MTP layers, where the draft model does so
  kTurnedStacks,       ///< plain stacks of experts in another order than releases have them
  kOtherNames,         ///< weights under names that the engine does not know (EngineRow::names)
  kIdentityExperts,    ///< routed experts, where files have some that releases have no tensors of
  kStacks,             ///< stacks of experts
  kEmbeddings,         ///< embedding of the model
  kTiedEmbeddings,     ///< embedding of the model, where it is the head too
  kAsymmetric,         ///< weights with zero points
  kFewBits,            ///< GPTQ's codes of 2 or 3 bits, but those of AutoRound
  kAutoRoundFewBits,   ///< AutoRound's codes of 2 or 3 bits
  kOddGroups,          ///< groups of other than 32, 64 or 128 columns, or rows, but in experts
  kOddGroupExperts,    ///< routed experts with such groups
  kUnevenGroups,       ///< AWQ's groups of no multiple of 32 columns, but in experts
  kNoZeroPoints,       ///< AWQ of a config without zero points, but experts; not of models in F16
  kNoZeroPointsOfAwq,  ///< AWQ without zero points, but of AutoRound
  kNoZeroPointExperts,  ///< routed experts in AWQ without zero points, but of AutoRound
  kNotHalfExperts,      ///< routed experts, but of models in F16
  // Weights of some widths, on so many ranks.
  kCutBlocks,      ///< weights in front of others in a module, with rows that end inside a block
  kWideGroups,     ///< gate and up of experts: width on a rank <= group of columns < columns
  kUnevenExperts,  ///< routed experts whose width on a rank is no multiple of 64
  kCutGroups,      ///< linears of which a group of columns would be on two ranks
  kRankGroups,  ///< experts' down_proj in groups on several ranks: neither ordered nor AutoRound's
  kOwnRankGroups,    ///< such down_proj that has an order of groups, or is of AutoRound
  kThinExperts,      ///< experts whose width on a rank has no group of 32, 64 or more columns
  kUntiled,          ///< linears of which a rank's module has no tile in Marlin (has_tile())
  kUntiledExperts,   ///< such routed experts, and no other kernel takes their groups
  kUntiledOfMarlin,  ///< such routed experts that SGLang's kernels in Triton take
};
std::string_view engine_scope_name(EngineScope scope);
/// True if the scope is about a further property of some weights of a scheme.
constexpr bool is_special(EngineScope scope) {
  return scope >= EngineScope::kOrdered;
}
/// True if the scope is about widths, which differ among models.
constexpr bool is_of_widths(EngineScope scope) {
  return scope >= EngineScope::kCutBlocks;
}

/// True if the scope is about the way in which files store weights, plain ones too.
constexpr bool is_of_files(EngineScope scope) {
  return scope >= EngineScope::kTurnedStacks && scope <= EngineScope::kStacks;
}

/// True if the scope is about some models only: other programs read such weights.
constexpr bool is_of_models(EngineScope scope) {
  return is_of_widths(scope) || is_of_files(scope) || scope == EngineScope::kFusedOtherwise ||
         scope == EngineScope::kFusedInDraft;
}

/// Answer whether a shared expert is one that SGLang loads as a routed one (fused_layers()), and
/// stored in another form than those.
enum class FusedOtherwise : std::uint8_t { kNo, kInModel, kInDraft };

/// A weight of a checkpoint, as far as engines tell it from others.
struct EngineWeight {
  std::string_view name;
  const formats::TensorRule* rule =
      nullptr;  ///< null outside the grammar: the name tells experts then
  formats::SchemeId scheme{};
  formats::Activations activations{};
  bool has_group_order = false, has_zero_points = false;
  std::string_view family = {};  ///< Family::name
  bool is_stacked = false;       ///< one tensor has a matrix of each expert
  bool is_turned_stack = false;  ///< plain stack in another order than releases have it
  /// The alias of the family under which the files have it; empty: as releases do.
  std::string_view alias = {};
  /// Routed expert where the files have gates and ups of experts without tensors, too.
  bool has_identity_experts = false;
  std::uint64_t rows = 0;  ///< outputs of a matrix
  std::uint64_t cols = 0;  ///< inputs of a matrix
  /// Outputs on a rank of the module that engines make of it, and of those joined with it; 0: not
  /// known, as of experts.
  std::uint64_t module_rows = 0;
  std::uint64_t block_rows = 0;  ///< rows that share a scale, where there are blocks; else 0
  std::uint64_t block_cols = 0;  ///< columns that share a scale, where there are blocks; else 0
  bool has_row_scales = false;   ///< the config says one scale a row where others have groups
  bool has_power_of_two_scales = false;
  bool has_inverse_name = false;  ///< scale is called weight_scale_inv
  /// Bits of a code as GPTQ, AWQ or AutoRound packs it, and the columns of a group as its config
  /// has them, 0 for rows; 0 bits: packed by none of these.
  std::uint64_t packed_bits = 0, packed_group = 0;
  bool is_auto_round = false;
  bool says_no_zero_points = false;  ///< AWQ with `zero_point` false in its config
  bool is_in_half = false;           ///< the model computes in F16, by its config
  FusedOtherwise fused_otherwise = FusedOtherwise::kNo;
  bool is_tied = false;     ///< embedding is the head too
  std::uint64_t ranks = 1;  ///< ranks of tensor parallelism, which cut it; not 0
};
/// True if the weight is one of the routed experts, or a stack of them.
bool is_expert(const EngineWeight& weight);
bool is_in_scope(EngineScope scope, const Dialect& dialect, const EngineWeight& weight);

/// Number of rows of such a weight in front of another's in the module that engines make of
/// both; 0 where it is the last of its module, or the only one in it.
std::uint64_t rows_before_others(const formats::TensorRule& rule, std::uint64_t rows);

/// True if a part of one number has no dimensions where its dialect says [1]: SGLang joins those of
/// q_a_proj and kv_a_proj, and asserts on two of shape [1]; vLLM takes either.
bool is_joined_number(formats::PartShape shape, const formats::TensorRule* rule);

// An engine is a program that loads checkpoints. A row is one version of one engine: everything
// about it that expires is in its file in versions/.

using formats::Activations;
using formats::Dialect;
using formats::SchemeId;

/// The programs. Code that reads configs as one of them does asks for the program, all else for the
/// row.
enum class Engine : std::uint8_t { kVllm, kSglang, kTrtllm, kVllmAscend, kTransformers, kDeepseek };

/// How it is known that an engine reads something, the best first.
enum class Evidence : std::uint8_t {
  kOnGpu,        ///< run on a GPU with its own kernels: right text or probabilities
  kGenerated,    ///< run on a CPU: loaded an output, and gave the right text
  kLoaded,       ///< load of every weight of an output
  kReplaced,     ///< load with replaced kernels; the real ones might refuse it or be wrong
  kRead,         ///< words of its source or documentation
  kNotRead,      ///< words of its makers, where no package of it can be had to read them in
  kNotOfFamily,  ///< run or source of other families, not tried with this one
  kNotTried,     ///< words of its makers on such checkpoints; not looked at here
};
std::string_view evidence_text(Evidence evidence);  ///< "generated text on a GPU"
/// True if a run or the source speaks for it, of this family.
constexpr bool is_known(Evidence evidence) {
  return evidence <= Evidence::kRead;
}

/// A scheme that an engine reads in a dialect.
struct EngineLoad {
  std::string_view dialect;  ///< empty for plain schemes, which all dialects write alike
  SchemeId scheme{};
  std::optional<Activations> activations;  ///< nullopt for plain schemes
  Evidence evidence{};
  std::string_view option = {};  ///< option that the engine needs to load them; empty: none
  /// Place that kRead is about: a file, with the line of a release or with function and commit.
  std::string_view source = {};
};
/// The stable name of a row, made of its facts: "load.ct.fp8-block.dynamic". Probes have it
/// (scripts/engines/read.py).
std::string row_id(const EngineLoad& load);

/// The effect of a limit on its weights.
enum class EngineEffect : std::uint8_t {
  kRefused,         ///< error while it loads or starts
  kGarbage,         ///< no error, and other numbers than the weights say
  kGarbageWithout,  ///< garbage, on some cards at least, where `option` is not given
  kRefusedOption,   ///< error where `option` is given
  kCoarser,         ///< rounding of the engine's own, within which its numbers are right
  kRefusedOnCards,  ///< error on the cards that the reason names
};

/// A weight that an engine does not load as a dialect says it, or loads and computes otherwise.
struct EngineLimit {
  std::string_view dialect;                ///< empty: any
  std::optional<SchemeId> scheme;          ///< nullopt: any
  std::optional<Activations> activations;  ///< nullopt: of any kind
  EngineScope scope{};
  std::string_view reason;   ///< reason in its code
  std::string_view instead;  ///< form that the engine loads
  /// Option with which the engine loads the weight all the same, and rightly; empty: none.
  /// kRefusedOption: option with which the engine does not load it.
  std::string_view option = {};
  /// The family whose loader has the limit; empty: the loader of every family.
  std::string_view family = {};
  /// True if the dialect is that of another engine: the limit is reported only to users who ask for
  /// this engine.
  bool is_foreign = false;
  EngineEffect effect = EngineEffect::kRefused;
  /// True if the engine does not load the weight with any option, or loads it and is always wrong.
  [[nodiscard]] bool is_refusal() const {
    return effect == EngineEffect::kGarbage || (effect == EngineEffect::kRefused && option.empty());
  }
  /// The option without which the engine does not load the weight, or not on every card, or
  /// wrongly; empty: no option is needed, or none helps.
  [[nodiscard]] std::string_view needed_option() const {
    return effect == EngineEffect::kRefused || effect == EngineEffect::kGarbageWithout
               ? option
               : std::string_view();
  }
  /// True if it is about a form that the engine refuses of every model, as opposed to the widths or
  /// the loader of some: a plan in a form that all engines refuse is refused.
  [[nodiscard]] bool is_of_form() const { return family.empty() && !is_of_models(scope); }
};
/// "limit.ct.int4-group.ordered", "limit.llama.deepseek.fp8-block": row_id() of a limit.
std::string row_id(const EngineLimit& limit);
/// "refused", "with OPTION", "garbage without an error", "garbage without OPTION", "refused with
/// OPTION", "rounded", "refused on some cards".
std::string engine_effect_text(const EngineLimit& limit);

/// A set of schemes.
class SchemeSet {
 public:
  constexpr SchemeSet() = default;
  constexpr SchemeSet(std::initializer_list<SchemeId> schemes) {
    for (const SchemeId scheme : schemes) bits_ |= bit(scheme);
  }
  [[nodiscard]] constexpr bool contains(SchemeId scheme) const {
    return (bits_ & bit(scheme)) != 0;
  }

 private:
  static constexpr std::uint32_t bit(SchemeId scheme) {
    return std::uint32_t{1} << static_cast<std::uint32_t>(scheme);
  }
  std::uint32_t bits_ = 0;
};

/// Schemes of a family's weights that an engine was seen to take: each engine has a model class and
/// a loader for each family.
struct EngineFamily {
  std::string_view family;  ///< Family::name
  Evidence evidence{};
  SchemeSet schemes;
};

/// Names of a family's tensors, as an alias has them, that an engine takes as those of releases.
struct EngineNames {
  std::string_view family;  ///< Family::name
  std::string_view alias;   ///< NameAlias::stored
};

/// A way of reading configs that some versions of an engine have.
enum class EngineReading : std::uint8_t {
  kFlatExcludes,      ///< ModelOpt's flat block: `exclude_modules` where there is no `ignore`
  kProducerMixtures,  ///< ModelOpt's block with a producer: MIXED_PRECISION too
};
std::string_view reading_id(EngineReading reading);    ///< "reader.modelopt.flat-excludes"
std::string_view reading_text(EngineReading reading);  ///< the reading, as a sentence

/// A package by which an engine reads configs, in the version that it demands.
struct EnginePin {
  std::string_view package, version;
};

/// One version of one engine.
struct EngineRow {
  Engine engine{};
  std::string_view word;     ///< word of --for
  std::string_view version;  ///< version that was looked at; empty: any
  std::string_view name;     ///< name with the version, where there is one: "vLLM 0.32"
  /// True if the engine's refusals are known (`limits`): plans and `check` judge by them.
  bool is_judged = false;
  std::string_view command;       ///< command that serves a checkpoint: before the directory
  std::string_view ranks_option;  ///< option for the number of devices; empty: none is needed
  std::string_view code_option;   ///< option to run Python code of the checkpoint; empty: none
  /// Option with which the engine starts without a tokenizer, and takes and gives ids; empty: it
  /// needs a tokenizer.
  std::string_view ids_option;
  /// Classes without a head of tokens (formats::head_of) that the engine has; empty: not known.
  std::span<const std::string_view> pooling_classes = {};
  /// Option with which the engine takes any other model without a head, as a model of embeddings.
  std::string_view pooling_option = {};
  /// Rows of one scheme are in the order in which --for takes them.
  std::span<const EngineLoad> loads;
  std::span<const EngineLimit> limits;
  /// Families that were tried (docs/engines.md). Nothing is known about a family without a row.
  std::span<const EngineFamily> families;
  /// Other names than those of releases that it takes. It is not known to take any others.
  std::span<const EngineNames> names = {};
  /// Families whose loaders take stacks of experts; empty: not known of any family.
  std::span<const std::string_view> stacks = {};
  /// Options with which a rank does not read experts that only other ranks hold, where files have
  /// them one by one; empty: it reads all.
  std::string_view skip_option = {};
  /// Families of an engine that is written for some families only; empty: any.
  std::span<const std::string_view> written_for = {};
  std::span<const EngineReading> readings = {};
  std::span<const EnginePin> pins = {};
  /// The version that ran, where that is another: evidence of runs is its own, and holds for this
  /// one where the code that a probe looks at is the same.
  std::string_view tried = {};
  /// Ids of loads and families ("family.llama") whose code is not that of `tried`: they were read.
  std::span<const std::string_view> read_again = {};

  /// Evidence of a form in this version: EngineLoad::evidence, or kRead of other code.
  [[nodiscard]] Evidence evidence_of(const EngineLoad& load) const;
  [[nodiscard]] Evidence evidence_of(const EngineFamily& row) const;
  /// The version that a run was of; empty where the evidence is no run.
  [[nodiscard]] std::string_view ran_in(Evidence evidence) const;
  /// evidence_text(), with the version that ran if that is another: "generated text in 0.32".
  [[nodiscard]] std::string known_text(Evidence evidence) const;
  [[nodiscard]] bool has(EngineReading reading) const;
  /// The version of a package that it demands; empty: any.
  [[nodiscard]] std::string_view pin_of(std::string_view package) const;
  [[nodiscard]] bool is_written_for(std::string_view family) const;
  /// True if it takes the weight by the name that the files have.
  [[nodiscard]] bool knows_name(const EngineWeight& weight) const;
  /// The row of a stored weight, or null.
  [[nodiscard]] const EngineLoad* find_load(const Dialect& dialect, SchemeId scheme,
                                            Activations activations) const;
  /// The best that is known of a scheme of a family: kNotOfFamily where no row has it.
  [[nodiscard]] Evidence family_evidence(std::string_view family, SchemeId scheme) const;
};

}  // namespace ingot::engines
