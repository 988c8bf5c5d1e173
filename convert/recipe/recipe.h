#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/selector.h"
#include "engines/row/engine.h"
#include "formats/adapters/adapter_config.h"
#include "formats/base/pattern.h"
#include "formats/changes/value_change.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"
#include "formats/json/json_fwd.h"
#include "formats/kept_experts.h"
#include "quantize/scheme.h"

namespace ingot::convert {
class ActivationScales;
class KvRanges;
class Importance;
struct ComposedFacts;
struct Composition;
struct RepairFacts;

/// Where a rule comes from; rules are tried in this order.
enum class RuleOrigin : std::uint8_t {
  kRule /* --rule */,
  kRecipe /* --recipe */,
  kDefault /* family and --to */
};

/// From tensors to a scheme.
struct Rule {
  Selector selector;
  std::optional<formats::SchemeId> scheme;  ///< nullopt: keep that of the source
  RuleOrigin origin = RuleOrigin::kRule;
  bool quantized_only = false;  ///< defaults of --to: only tensors that the source holds quantized
  /// And those that it holds in more bits than it says and releases have (formats::is_saved_wider).
  bool narrows_saved = false;
  std::optional<std::uint32_t> first_layer;  ///< --mtp: only layers from this one on
  std::string from = {};  ///< giver of the tensors (ingot compose); empty: the base
  std::string file = {};  ///< recipe file that has the rule
  int line = 0;           ///< line in `file`, from 1

  [[nodiscard]] bool matches(const formats::LogicalTensor& tensor) const;
  /// True if a tensor stays as it is although the rule matches it: a plain tensor of more bits than
  /// the rule's scheme is narrowed only by a rule that gives its whole name, or its role.
  [[nodiscard]] bool spares(const formats::LogicalTensor& tensor) const;
  /// True if `narrows_saved` is set, and the source holds the tensor in more bits than releases do
  /// (formats::is_saved_wider).
  [[nodiscard]] bool narrows(const formats::LogicalTensor& tensor) const;
  /// True if the rule gives its whole name, or its role. Towers of other modalities and lookup
  /// tables stay as their makers left them unless a rule does.
  [[nodiscard]] bool names(const formats::LogicalTensor& tensor) const;
};

/// The action on MTP layers.
enum class MtpPolicy : std::uint8_t {
  kConvert,  ///< converted like any other layer
  kBf16,     ///< quantized tensors become BF16
  kKeep,     ///< left in the source's scheme, where the target dialect can hold it
  kDrop,
};

/// Faults that the user accepts, by tensor. Recorded in the manifest.
struct Allowances {
  std::vector<Pattern> nan_code, zero_scale, unknown_tensor, duplicate_tensor, nonfinite,
      f16_overflow, underflow, engine_refuses, lora_base;
  /// Adds `KIND=PATTERN`; throws kInvalidArgument, naming the kinds.
  void add(std::string_view text);
  /// The kinds, as in --allow.
  static std::vector<std::string_view> kinds();
};

/// True if one of the patterns matches.
bool any_matches(const std::vector<Pattern>& patterns, const std::string& name);

/// The type of values between decoding and encoding.
enum class Via : std::uint8_t { kF32, kBf16 /* as if cast to BF16 first */ };

/// In which form routed experts are written.
enum class ExpertChoice : std::uint8_t { kKeep, kStacked, kSeparate };

/// How numbers are written, apart from the choice of schemes. Recorded in the manifest.
struct Choices {
  const engines::EngineRow* engine = nullptr;  ///< --for; null: none
  std::string dialect;                         ///< empty: by the schemes
  std::optional<formats::Activations> activations;
  std::optional<quantize::Fp8Grid> fp8_grid;  ///< nullopt: as the source, else amax
  quantize::ScaleSearch search = quantize::ScaleSearch::kMse;
  /// Columns that share an INT4 scale, 0: all of a row; nullopt: the source's, else 128.
  std::optional<std::uint64_t> group_size;
  bool zero_points = false;  ///< --zero-points: INT4 gets zero points, chosen with the scales
  Via via = Via::kF32;
  bool quantize_attention = false;
  bool gptq = false;       ///< --gptq: errors of columns are carried on, by moments of --importance
  std::string base_model;  ///< --base-model: the source's name on the hub; empty: its place tells
  std::optional<std::uint64_t> n_layers;  ///< --layers: only the first so many; nullopt: all
  /// The lists of `ingot prune`, of this job and of those that made its source; empty: all stay.
  std::vector<formats::KeptExperts> kept_experts;
  bool prunes = false;                  ///< true: the last of these is this job's
  std::optional<ExpertChoice> experts;  ///< --experts; nullopt: as loaders of the target read them
  std::optional<float> input_scale;     ///< --input-scale
  std::shared_ptr<const ActivationScales> activation_scales;  ///< --activation-scales
  std::shared_ptr<const Importance> importance;               ///< --importance
  std::shared_ptr<const KvRanges> kv_scales;                  ///< --kv-scales
  std::shared_ptr<const formats::Checkpoint> scales_from;     ///< --scales-from
  formats::JsonValue scales_from_fingerprint;
  std::string lora;                   ///< --lora: directory of an adapter; empty: none
  int lora_line = 0;                  ///< line of the recipe that names it; 0: --lora does
  formats::LoraOptions lora_options;  ///< --lora-scale, --expert-b-order
  /// Editors of decoded values, in their order: the adapter of --lora, opened.
  std::vector<std::shared_ptr<const formats::ValueEditor>> editors;
  /// --keep-touched: quantized tensors whose values change, and those that loaders fuse with them,
  /// are held in this scheme where theirs has fewer bits; nullopt: in theirs.
  std::optional<formats::SchemeId> keep_touched;
  /// `ingot repair`: the description of the quantization is derived again, weights that loaders
  /// fuse get one global scale, and files in which nothing changes are links. Null: no repair.
  std::shared_ptr<const RepairFacts> repair;
  /// `ingot compose`: the source is composed of several, and keeps what it was taken for. Null:
  /// one.
  std::shared_ptr<const ComposedFacts> composed;

  [[nodiscard]] formats::Json to_json() const;
};

/// A recipe's decision about one tensor.
struct Decision {
  const Rule* rule = nullptr;               ///< null: no rule fired
  const Rule* spared_by = nullptr;          ///< first rule that matched and spared the tensor
  std::optional<formats::SchemeId> scheme;  ///< nullopt: keep
};

/// The only place where choices live: ordered rules from tensor to scheme; the first that matches
/// and does not spare the tensor wins.
struct Recipe {
  std::vector<Rule> rules;
  std::optional<formats::SchemeId> to;  ///< --to: source of the default rules
  std::optional<MtpPolicy> mtp;         ///< nullopt: as in the default recipe
  Allowances allow;
  Choices choices;
  /// Options of `choices` that the user gave, as `--fp8-grid`: one without effect is refused.
  std::vector<std::string> given;

  /// Sets the layers that `layers:last` and `layers:mtp` mean in its rules.
  void set_layers(std::uint64_t num_hidden_layers);
  [[nodiscard]] Decision decide(const formats::LogicalTensor& tensor) const;
  /// Throws kInvalidArgument, collected, for rules of the user that match no tensor at all.
  void check_all_matched(std::span<const formats::LogicalTensor> tensors) const;
  /// Remarks about rules of the user: one all of whose tensors others decide, and layers that the
  /// model does not have.
  [[nodiscard]] std::vector<std::string> remarks(
      std::span<const formats::LogicalTensor> tensors) const;
  /// The resolved recipe for the manifest.
  [[nodiscard]] formats::Json to_json() const;
};

/// The options that a recipe was made of, as settings of a run: from their names to their values,
/// or to a list of them; null or empty where one was not given. `recipe` is as to_json() has it.
formats::Json settings_of(const formats::Json& recipe);

/// `SELECTOR=SCHEME`, split at the last '='. Throws kInvalidArgument.
Rule parse_rule(std::string_view text);
/// A rule from its two halves.
Rule make_rule(std::string_view selector, std::string_view scheme_word, RuleOrigin origin);

/// A scheme by its name or --to word, in any case; `where` names the option in the error, which
/// lists the names.
formats::SchemeId parse_scheme_word(std::string_view word, std::string_view where);
/// The --to word for a scheme's name in other programs (`bfloat16`, `q8_0`); empty for other words,
/// and for those that are schemes here.
std::string_view scheme_meant(std::string_view word);

std::string_view scale_search_name(quantize::ScaleSearch search);

/// An option of a recipe that takes a word, on the command line, in YAML or in JSON.
struct RecipeOption {
  std::string_view name;                    ///< `--search`; its key in a recipe is `search`
  std::span<const std::string_view> words;  ///< the words that exist; empty: any other text
  /// Sets the choice; throws kInvalidArgument, naming the option.
  void (*take)(std::string_view name, std::string_view word, Recipe& recipe);
};
std::span<const RecipeOption> recipe_options();
/// The option of this name. REQUIRES: it exists.
const RecipeOption& recipe_option(std::string_view name);
/// Takes the word of an option, which is then given.
void take_option(std::string_view name, std::string_view word, Recipe& recipe);

/// A recipe in YAML: recipe_options(), `rules` (a list of {match, scheme}), `allow` (a map from
/// kind to a list of patterns), `quantize-attention`, `gptq` and `zero-points`. At most 1 MiB and
/// 10,000 rules; anything unknown or of the wrong type is kInvalidArgument, with its line.
/// `composition`: takes the words of a recipe of several sources too, which must name a base:
/// `base`, `sources`, `overlays`, `edits`, `side-files`, `fused`, and `from` in a rule; null: these
/// are refused.
Recipe parse_recipe(std::string_view yaml, std::string_view where,
                    Composition* composition = nullptr);

}  // namespace ingot::convert
