#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/json.h"
#include "formats/tensor_source.h"

namespace ingot::convert {

/// Where a rule comes from; rules are tried in this order.
enum class RuleOrigin : std::uint8_t {
  kRule /* --rule */,
  kRecipe /* --recipe */,
  kDefault /* family and --to */
};

/// From tensors to a scheme.
struct Rule {
  std::string selector;                     ///< a glob, `re:EXPR` or `role:NAME`, as given
  std::optional<formats::SchemeId> scheme;  ///< nothing: keep what is there
  RuleOrigin origin = RuleOrigin::kRule;
  bool quantized_only = false;  ///< defaults of --to: only tensors that the source holds quantized
  std::shared_ptr<const Pattern> pattern;  ///< null for role selectors
  formats::Role role = formats::Role::kOther;

  [[nodiscard]] bool matches(const formats::LogicalTensor& tensor) const;
};

/// What becomes of MTP layers.
enum class MtpPolicy : std::uint8_t { kConvert /* as any other layer */, kDrop };

/// Faults that the user accepts, by tensor. Recorded in the manifest.
struct Allowances {
  std::vector<Pattern> nan_code, zero_scale, unknown_tensor;
  /// Adds `KIND=PATTERN`, KIND one of nan-code, zero-scale, unknown-tensor; throws
  /// kInvalidArgument.
  void add(std::string_view text);
};

/// What a recipe says about one tensor.
struct Decision {
  const Rule* rule = nullptr;               ///< null: no rule fired
  std::optional<formats::SchemeId> scheme;  ///< nothing: keep
};

/// The only place where choices live: ordered rules from tensor to scheme; the first that matches
/// wins.
struct Recipe {
  std::vector<Rule> rules;
  std::optional<formats::SchemeId> to;  ///< --to: source of the default rules
  MtpPolicy mtp = MtpPolicy::kConvert;
  Allowances allow;

  [[nodiscard]] Decision decide(const formats::LogicalTensor& tensor) const;
  /// Throws kInvalidArgument, collected, for rules of the user that match no tensor at all.
  void check_all_matched(std::span<const formats::LogicalTensor> tensors) const;
  /// The resolved recipe for the manifest.
  [[nodiscard]] formats::Json to_json() const;
};

/// `SELECTOR=SCHEME`, split at the last '='. Throws kInvalidArgument.
Rule parse_rule(std::string_view text);
/// A rule from its two halves.
Rule make_rule(std::string_view selector, std::string_view scheme_word, RuleOrigin origin);

/// A scheme by name or --to word; `where` names the option in the error, which lists the choices.
formats::SchemeId parse_scheme_word(std::string_view word, std::string_view where);
MtpPolicy parse_mtp_policy(std::string_view word, std::string_view where);

/// A recipe in YAML: `to`, `mtp`, `rules` (a list of {match, scheme}) and `allow` (a map from kind
/// to a list of patterns). At most 1 MiB and 10,000 rules; anything unknown or of the wrong type is
/// kInvalidArgument.
Recipe parse_recipe(std::string_view yaml, std::string_view where);

/// Appends the rules of last resort: what `recipe.to` means.
void add_default_rules(Recipe& recipe);

}  // namespace ingot::convert
