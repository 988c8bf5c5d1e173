#include <algorithm>
#include <map>
#include <set>
#include <vector>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/config/routing.h"
#include "formats/family/cache_scales.h"
#include "formats/family/family.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"
#include "formats/family/text_names.h"

// A name is turned into its pattern (numbers behind words like `layers` and `experts` become
// marks), and the pattern is looked up: one binary search per name instead of a comparison with
// every row.

namespace ingot::formats {
namespace {

/// A decimal number as our names have it: digits only, no leading zero, below 2^32.
std::optional<std::uint32_t> number_of(std::string_view text) {
  if (text.empty() || (text.size() > 1 && text.front() == '0')) return std::nullopt;
  return number_from(text);
}

/// The words of a family's patterns that come before `mark`.
std::vector<std::string> words_before(std::string_view mark, const Family& family) {
  std::set<std::string> words;
  for (const TensorRule& rule : family.rules) {
    const std::size_t at = rule.pattern.find(mark);
    if (at == std::string_view::npos || at == 0) continue;
    const std::string_view before = rule.pattern.substr(0, at - 1);
    words.emplace(before.substr(before.rfind('.') + 1));
  }
  return {words.begin(), words.end()};
}

bool is_among(const std::vector<std::string>& words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

}  // namespace

struct NameGrammar::NumberedName {
  std::string pattern;
  std::optional<std::uint32_t> layer, mtp, expert, part;
  const Width* n_parts = nullptr;
};

NameGrammar::NumberedName NameGrammar::split_numbers(std::string_view name) const {
  NumberedName result;
  result.pattern.reserve(name.size() + 8);
  std::string_view previous;
  while (true) {
    const std::size_t dot = name.find('.');
    const std::string_view component = name.substr(0, dot);
    const auto number = number_of(component);
    if (number && !result.layer && is_among(words_.layer, previous)) {
      result.layer = number;
      result.pattern += kLayerMark;
    } else if (number && !result.layer && !result.mtp && is_among(words_.mtp, previous)) {
      result.mtp = number;
      result.pattern += kMtpMark;
    } else if (number && !result.expert && is_among(words_.expert, previous)) {
      result.expert = number;
      result.pattern += kExpertMark;
    } else {
      const auto number_in = [&](const CountedWord& word) {
        return result.pattern == word.before && component.starts_with(word.head)
                   ? number_of(component.substr(word.head.size()))
                   : std::nullopt;
      };
      const auto counted = std::ranges::find_if(
          counted_, [&](const CountedWord& word) { return number_in(word).has_value(); });
      if (counted == counted_.end() || result.part) {
        result.pattern += component;
      } else {
        result.part = number_in(*counted);
        result.n_parts = &counted->count;
        result.pattern += counted->head + counted->mark;
      }
    }
    if (dot == std::string_view::npos) return result;
    result.pattern += '.';
    previous = component;
    name.remove_prefix(dot + 1);
  }
}

NameGrammar::NameGrammar(const Family& family, const ModelConfig& config)
    : family_(&family),
      config_(&config),
      words_{.layer = words_before(kLayerMark, family),
             .mtp = words_before(kMtpMark, family),
             .expert = words_before(kExpertMark, family)} {
  std::map<std::string, std::vector<const TensorRule*>> sorted;
  for (const TensorRule& rule : family.rules) {
    sorted[std::string(rule.pattern)].push_back(&rule);
    const std::string_view mark = key_mark(rule.pattern);
    if (mark.empty()) continue;
    std::string_view before = rule.pattern.substr(0, rule.pattern.find(mark));
    const std::string_view head = before.substr(before.rfind('.') + 1);
    before.remove_suffix(head.size());
    counted_.push_back({.before = std::string(before),
                        .head = std::string(head),
                        .mark = std::string(mark),
                        .count = count_of(mark, family)});
  }
  by_pattern_.assign(sorted.begin(), sorted.end());
}

std::optional<NameGrammar::Match> NameGrammar::match(std::string_view name) const {
  const std::string text = text_model_name(name, config_->text);
  // If names with the prefix exist, those without it would be the same tensors once more.
  const bool is_own_form = stored_text_name(text, config_->text) == name;
  if (auto found = is_own_form ? match_text(text) : std::nullopt) return found;
  if (const TensorRule* head = class_head_rule(text, *config_)) return Match{.rule = head};
  const TensorRule* rule = shared_rule(name);
  const bool may_have_towers = family_->rules.empty() || config_->text.has_towers;
  if (rule == nullptr || (rule->role == Role::kOtherModality && !may_have_towers))
    return std::nullopt;
  if (!is_cache_scale(rule)) return Match{.rule = rule};
  // A scale of the cache goes where its layer goes.
  std::string named = text_model_name(name, config_->text);
  const bool is_mtp_layer = !family_->mtp_layers.empty() && named.starts_with(family_->mtp_layers);
  if (is_mtp_layer) named.replace(0, family_->mtp_layers.size(), family_->main_layers);
  const NumberedName numbers = split_numbers(named);
  std::optional<std::uint64_t> layer = numbers.mtp ? numbers.mtp : numbers.layer;
  if (layer && (numbers.mtp || is_mtp_layer)) *layer += config_->num_hidden_layers;
  if (!layer) return Match{.rule = rule};
  if (*layer >= layer_count(*config_)) return std::nullopt;
  return Match{.rule = rule, .layer = static_cast<std::uint32_t>(*layer)};
}

std::string NameGrammar::pattern_of(std::string_view name) const {
  std::string text = text_model_name(name, config_->text);
  const bool is_mtp_layer = !family_->mtp_layers.empty() && text.starts_with(family_->mtp_layers);
  if (is_mtp_layer) text.replace(0, family_->mtp_layers.size(), family_->main_layers);
  return split_numbers(text).pattern;
}

bool NameGrammar::knows(std::string_view name) const {
  if (is_cache_scale(shared_rule(name))) return true;
  return std::ranges::binary_search(by_pattern_, pattern_of(name), {},
                                    [](const auto& entry) { return entry.first; });
}

std::optional<NameGrammar::Match> NameGrammar::match_text(std::string name) const {
  // A name that holds our marks would look like a pattern.
  if (by_pattern_.empty() || name.find('{') != std::string_view::npos) return std::nullopt;
  const bool is_mtp_layer = !family_->mtp_layers.empty() && name.starts_with(family_->mtp_layers);
  if (is_mtp_layer) name.replace(0, family_->mtp_layers.size(), family_->main_layers);
  NumberedName numbered = split_numbers(name);
  const auto found =
      std::lower_bound(by_pattern_.begin(), by_pattern_.end(), numbered.pattern,
                       [](const auto& entry, const std::string& key) { return entry.first < key; });
  if (found == by_pattern_.end() || found->first != numbered.pattern) return std::nullopt;
  // Layers of a tower are none of the text model's.
  if (found->second.front()->role == Role::kOtherModality)
    return Match{.rule = found->second.front()};
  if (is_mtp_layer) std::swap(numbered.layer, numbered.mtp);
  // Tensors that all MTP layers share have no number.
  if (!numbered.layer && !numbered.mtp && found->second.front()->scope == Scope::kMtpLayer)
    numbered.mtp = 0;
  if (numbered.mtp) {
    // Counted from 0 in the name, behind the main layers everywhere else.
    const std::uint64_t layer = config_->num_hidden_layers + *numbered.mtp;
    if (layer >= layer_count(*config_)) return std::nullopt;
    numbered.layer = static_cast<std::uint32_t>(layer);
  } else if (numbered.layer && *numbered.layer >= config_->num_hidden_layers &&
             (!family_->mtp_layers.empty() || !words_.mtp.empty())) {
    return std::nullopt;  // MTP layers have names of their own
  }
  if (numbered.expert && *numbered.expert >= experts_of(*config_, numbered.layer))
    return std::nullopt;
  if (numbered.part && *numbered.part >= numbered.n_parts->size(*config_, numbered.layer))
    return std::nullopt;
  for (const TensorRule* rule : found->second) {
    if (!is_in_layer(*rule, *config_, numbered.layer)) continue;
    if (promise_of(*rule, *config_, numbered.layer) == Promise::kForbidden) continue;
    return Match{.rule = rule, .layer = numbered.layer, .expert = numbered.expert};
  }
  return std::nullopt;
}

namespace {

// Forty times the largest released model: beyond it a config is hostile, and a caller's list would
// not fit.
constexpr std::uint64_t kMaxExpected = std::uint64_t{1} << 22;

void replace(std::string& text, std::string_view mark, std::optional<std::uint32_t> number) {
  const std::size_t at = text.find(mark);
  if (at != std::string::npos && number) text.replace(at, mark.size(), std::to_string(*number));
}

/// True if MTP layers have names of their own.
bool names_mtp(const Family& family) {
  return std::ranges::any_of(
      family.rules, [](const TensorRule& rule) { return has_mark(rule.pattern, kMtpMark); });
}

/// True if the row is in a layer, and its name can be that of a tensor there.
bool is_named_in(const TensorRule& rule, const ModelConfig& config,
                 std::optional<std::uint32_t> layer, bool names_mtp) {
  if (!is_in_layer(rule, config, layer)) return false;
  const bool is_of_mtp = layer && *layer >= config.num_hidden_layers;
  if (is_of_mtp && names_mtp && has_mark(rule.pattern, kLayerMark)) return false;
  // A tensor that all MTP layers share is there once.
  return !layer || *layer == config.num_hidden_layers || has_mark(rule.pattern, kLayerMark) ||
         has_mark(rule.pattern, kMtpMark);
}

class Walk {
 public:
  Walk(const Family& family, const ModelConfig& config, bool stacked,
       const std::function<void(const ExpectedTensor&)>& visit)
      : family_(family),
        config_(config),
        stacked_(stacked),
        names_mtp_(names_mtp(family)),
        visit_(visit) {}

  void level(std::optional<std::uint32_t> layer) {
    std::vector<const TensorRule*> of_experts;
    for (const TensorRule& rule : family_.rules) {
      if (!is_expected(rule, layer)) continue;
      if (has_mark(rule.pattern, kExpertMark)) {
        of_experts.push_back(&rule);
      } else {
        send(rule, layer, std::nullopt);
      }
    }
    if (of_experts.empty()) return;
    const auto n_experts =
        narrow<std::uint32_t>(experts_of(config_, layer), "the number of experts");
    for (std::uint32_t expert = 0; expert < n_experts; ++expert) {
      for (const TensorRule* rule : of_experts) send(*rule, layer, expert);
    }
  }

 private:
  [[nodiscard]] bool is_expected(const TensorRule& rule, std::optional<std::uint32_t> layer) const {
    if (!is_named_in(rule, config_, layer, names_mtp_)) return false;
    if (rule.presence == Presence::kStacked) return stacked_;
    if (rule.presence == Presence::kPerExpert) return !stacked_;
    return promise_of(rule, config_, layer) == Promise::kRequired;
  }

  void send(const TensorRule& rule, std::optional<std::uint32_t> layer,
            std::optional<std::uint32_t> expert) {
    const std::string_view mark = key_mark(rule.pattern);
    const std::uint64_t n_parts = mark.empty() ? 1 : count_of(mark, family_).size(config_, layer);
    for (std::uint64_t part = 0; part < n_parts; ++part) {
      if (++n_sent_ > kMaxExpected) {
        throw Error(ErrorCode::kLimit, "promises more than {} tensors", kMaxExpected)
            .in_file("config.json");
      }
      visit_({.name =
                  row_name(family_, config_, rule, layer, expert, static_cast<std::uint32_t>(part)),
              .rule = &rule,
              .layer = layer,
              .expert = expert});
    }
  }

  const Family& family_;
  const ModelConfig& config_;
  bool stacked_;
  bool names_mtp_;
  const std::function<void(const ExpectedTensor&)>& visit_;
  std::uint64_t n_sent_ = 0;
};

}  // namespace

std::string row_name(const Family& family, const ModelConfig& config, const TensorRule& rule,
                     std::optional<std::uint32_t> layer, std::optional<std::uint32_t> expert,
                     std::optional<std::uint32_t> part) {
  std::string name(rule.pattern);
  std::optional<std::uint32_t> mtp;
  if (layer && *layer >= config.num_hidden_layers)
    mtp = static_cast<std::uint32_t>(*layer - config.num_hidden_layers);
  if (mtp && !family.mtp_layers.empty() && name.starts_with(family.main_layers)) {
    name.replace(0, family.main_layers.size(), family.mtp_layers);
    layer = mtp;
  }
  replace(name, kLayerMark, layer);
  replace(name, kMtpMark, mtp);
  replace(name, kExpertMark, expert);
  if (const std::string_view mark = key_mark(rule.pattern); !mark.empty())
    replace(name, mark, part);
  return stored_text_name(name, config.text);
}

const TensorRule* find_row(const Family& family, const ModelConfig& config, Role role,
                           std::optional<std::uint32_t> layer) {
  const bool has_mtp_names = names_mtp(family);
  const auto row = std::ranges::find_if(family.rules, [&](const TensorRule& rule) {
    return rule.role == role && is_named_in(rule, config, layer, has_mtp_names) &&
           promise_of(rule, config, layer) != Promise::kForbidden;
  });
  return row == family.rules.end() ? nullptr : &*row;
}

void for_each_expected(const Family& family, const ModelConfig& config, bool stacked,
                       const std::function<void(const ExpectedTensor&)>& visit) {
  Walk walk(family, config, stacked, visit);
  walk.level(std::nullopt);
  const auto n_layers = narrow<std::uint32_t>(layer_count(config), "the number of layers");
  for (std::uint32_t layer = 0; layer < n_layers; ++layer) walk.level(layer);
}

}  // namespace ingot::formats
