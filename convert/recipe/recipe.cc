#include "convert/recipe/recipe.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "convert/recipe/composition.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/engine_choice.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/recipe/source_card.h"
#include "convert/recipe/statistics.h"
#include "engines/versions/versions.h"
#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/family/cache_scales.h"
#include "formats/json/json.h"
#include "formats/storage/encoding.h"
#include "formats/storage/meant_tensor.h"
#include "formats/text/spelling.h"

namespace ingot::convert {

using formats::Json;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

constexpr std::string_view kKeep = "keep";

// Words that people give for a scheme, and the words for it here.
constexpr std::array kSpoken = {
    Spoken{"w8a8", "W8A8 is int8, or fp8-channel"},
    Spoken{"w8a16", "W8A16 is fp8-channel with --activations weight-only"},
    Spoken{"fp4", "FP4 is nvfp4, or mxfp4"},
    Spoken{"awq", "AWQ is a way to choose the codes of int4, which the same kernels read"},
    Spoken{"gptq", "GPTQ is a way to choose the codes of int4, which the same kernels read"},
    Spoken{"gguf", "GGUF is made of a bf16 output by llama.cpp's convert_hf_to_gguf.py"},
};

// Words of other programs, in small letters, that mean one scheme here.
struct OtherName {
  std::string_view name, ours;
};
constexpr std::array kOtherNames = {
    OtherName{"bfloat16", "bf16"},      OtherName{"float16", "f16"},
    OtherName{"fp16", "f16"},           OtherName{"half", "f16"},
    OtherName{"float32", "f32"},        OtherName{"fp32", "f32"},
    OtherName{"float", "f32"},          OtherName{"fp8_e4m3", "fp8"},
    OtherName{"fp8_e4m3fn", "fp8"},     OtherName{"float8_e4m3fn", "fp8"},
    OtherName{"e4m3", "fp8"},           OtherName{"fp8_dynamic", "fp8-channel"},
    OtherName{"q8_0", "int8"},          OtherName{"8bit", "int8"},
    OtherName{"8-bit", "int8"},         OtherName{"w8a8_int8", "int8"},
    OtherName{"q4_0", "int4"},          OtherName{"4bit", "int4"},
    OtherName{"4-bit", "int4"},         OtherName{"w4a16", "int4"},
    OtherName{"w4a4", "nvfp4"},         OtherName{"nvfp4a16", "nvfp4"},
    OtherName{"modelopt_fp4", "nvfp4"}, OtherName{"mxfp4a16", "mxfp4"},
};

// For the end of a message about a word that is no scheme.
std::string hint_for(const std::string& word, std::span<const std::string_view> known) {
  for (const engines::EngineRow* engine : engines::engines()) {
    // The name without its version.
    const std::string_view name = engine->name.substr(0, engine->name.find(' '));
    if (lower_case(word) == engine->word || lower_case(word) == lower_case(name))
      return fmt::format("; that is an engine: --for {}", engine->word);
  }
  if (const std::string_view ours = scheme_meant(word); !ours.empty())
    return fmt::format("; that is {}", ours);
  return meaning_of(word, kSpoken, known);
}

struct Allowance {
  std::string_view name;
  std::vector<Pattern> Allowances::*patterns;
};
constexpr std::array kAllowances = {Allowance{"nan-code", &Allowances::nan_code},
                                    Allowance{"zero-scale", &Allowances::zero_scale},
                                    Allowance{"unknown-tensor", &Allowances::unknown_tensor},
                                    Allowance{"duplicate-tensor", &Allowances::duplicate_tensor},
                                    Allowance{"nonfinite", &Allowances::nonfinite},
                                    Allowance{"f16-overflow", &Allowances::f16_overflow},
                                    Allowance{"underflow", &Allowances::underflow},
                                    Allowance{"engine-refuses", &Allowances::engine_refuses},
                                    Allowance{"lora-base", &Allowances::lora_base}};

// The words of options, in the order of their values.
constexpr std::array<std::string_view, 4> kMtpPolicies = {"convert", "bf16", "keep", "drop"};
constexpr std::array<std::string_view, 2> kGrids = {"amax", "ue8m0"};
constexpr std::array<std::string_view, 5> kSearches = {"amax", "4over6", "mse", "signed",
                                                       "hessian"};
constexpr std::array<std::string_view, 4> kGroupWords = {"32", "64", "128", "row"};
constexpr std::array<std::uint64_t, 4> kGroupSizes = {32, 64, 128, 0};
constexpr std::array<std::string_view, 2> kVias = {"f32", "bf16"};
constexpr std::array<std::string_view, 3> kExpertChoices = {"keep", "stacked", "separate"};
constexpr std::array<std::string_view, 2> kTouchedSchemes = {"bf16", "fp8"};
constexpr std::array<std::string_view, 3> kActivations = {"weight-only", "dynamic", "static"};

template <typename Value>
std::string word_of(std::span<const std::string_view> words, Value value) {
  return std::string(words[static_cast<std::size_t>(value)]);
}

std::string scheme_word(const std::optional<SchemeId>& scheme) {
  return std::string(scheme ? scheme_name(*scheme) : kKeep);
}

/// A rule as it is written: `SELECTOR=SCHEME`, with the giver where it names one.
std::string rule_text(const Rule& rule) {
  const std::string from = rule.from.empty() ? "" : fmt::format(" from {}", rule.from);
  return rule.scheme || rule.from.empty()
             ? fmt::format("{}={}{}", rule.selector.text(), scheme_word(rule.scheme), from)
             : rule.selector.text() + from;
}

std::string_view origin_name(RuleOrigin origin) {
  static constexpr std::array<std::string_view, 3> kNames = {"--rule", "--recipe", "default"};
  return kNames.at(static_cast<std::size_t>(origin));
}

}  // namespace

bool Rule::matches(const LogicalTensor& tensor) const {
  if (first_layer && !(tensor.layer && *tensor.layer >= *first_layer)) return false;
  if (quantized_only && !is_coded(tensor.encoding.scheme) && !narrows(tensor)) return false;
  // A cast that no user's rule asks for is of numbers: indices and unread codes have none.
  if (origin == RuleOrigin::kDefault && scheme && !is_quantized(*scheme) &&
      tensor.encoding.scheme == SchemeId::kRaw)
    return false;
  try {
    return selector.matches(tensor);
  } catch (const Error& error) {
    if (line == 0) throw;
    throw Error(error.code(), "line {}: {}", line, error.message()).in_file(file);
  }
}

bool Rule::narrows(const LogicalTensor& tensor) const {
  return narrows_saved && scheme && formats::is_saved_wider(tensor, *scheme);
}

bool Rule::names(const LogicalTensor& tensor) const {
  return origin != RuleOrigin::kDefault && selector.names(tensor);
}

bool Rule::spares(const LogicalTensor& tensor) const {
  const SchemeId stored = tensor.encoding.scheme;
  if (!scheme || is_quantized(*scheme) || is_coded(stored) || narrows(tensor)) return false;
  return !selector.names(tensor) &&
         formats::scheme_facts(stored).code_bits > formats::scheme_facts(*scheme).code_bits;
}

void Allowances::add(std::string_view text) {
  const std::size_t equals = text.find('=');
  for (const Allowance& row : kAllowances) {
    if (text.substr(0, equals) != row.name) continue;
    if (equals == std::string_view::npos || equals + 1 == text.size()) {
      throw Error(ErrorCode::kInvalidArgument, "--allow {0} needs a pattern: {0}=PATTERN",
                  row.name);
    }
    std::vector<Pattern>& patterns = this->*row.patterns;
    Pattern added(text.substr(equals + 1));
    if (std::ranges::find(patterns, added.text(), &Pattern::text) == patterns.end())
      patterns.push_back(std::move(added));
    return;
  }
  throw Error(ErrorCode::kInvalidArgument, "--allow '{}' is not KIND=PATTERN with KIND one of {}{}",
              text, fmt::join(kinds(), ", "), did_you_mean(text.substr(0, equals), kinds()));
}

std::vector<std::string_view> Allowances::kinds() {
  std::vector<std::string_view> names;
  for (const Allowance& row : kAllowances) names.push_back(row.name);
  return names;
}

bool any_matches(const std::vector<Pattern>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const Pattern& pattern) { return pattern.matches(name); });
}

namespace {

bool stays_unless_named(const LogicalTensor& tensor) {
  const formats::Role role = role_of(tensor);
  return role == formats::Role::kOtherModality || role == formats::Role::kLookupTable ||
         role == formats::Role::kUnknown || formats::is_cache_scale(tensor.rule);
}

}  // namespace

void Recipe::set_layers(std::uint64_t num_hidden_layers) {
  for (Rule& rule : rules) rule.selector.set_layers(num_hidden_layers);
}

Decision Recipe::decide(const LogicalTensor& tensor) const {
  Decision decision;
  for (const Rule& rule : rules) {
    if (!rule.matches(tensor)) continue;
    // Patterns and defaults speak of the text model's weights; a cast of all that is quantized, of
    // towers too.
    const bool is_of_cast = rule.quantized_only && rule.origin == RuleOrigin::kDefault &&
                            role_of(tensor) == formats::Role::kOtherModality;
    if (stays_unless_named(tensor) && !rule.names(tensor) && !rule.narrows(tensor) && !is_of_cast &&
        rule.from.empty())
      continue;
    if (!rule.spares(tensor)) {
      decision.rule = &rule;
      decision.scheme = rule.scheme;
      return decision;
    }
    if (decision.spared_by == nullptr) decision.spared_by = &rule;
  }
  return decision;
}

void Recipe::check_all_matched(std::span<const LogicalTensor> tensors) const {
  ErrorList errors;
  for (const Rule& rule : rules) {
    if (rule.origin == RuleOrigin::kDefault) continue;
    if (std::any_of(tensors.begin(), tensors.end(),
                    [&](const LogicalTensor& t) { return rule.matches(t); }))
      continue;
    Error error(ErrorCode::kInvalidArgument, "{}{} '{}' matches no tensor (see {}){}",
                rule.line > 0 ? fmt::format("line {}: ", rule.line) : "", origin_name(rule.origin),
                rule_text(rule),
                rule.selector.knows_family() ? "ingot list roles DIR for its roles and layers"
                                             : "ingot inspect --tensors for the names",
                formats::meant_tensor(rule.selector.text(), tensors));
    errors.add(error.in_file(rule.file));
  }
  errors.throw_if_any();
}

std::vector<std::string> Recipe::remarks(std::span<const LogicalTensor> tensors) const {
  const auto is_users = [](const Rule& rule) { return rule.origin != RuleOrigin::kDefault; };
  if (std::ranges::none_of(rules, is_users)) return {};
  std::set<const Rule*> acting;
  std::map<const Rule*, std::set<const Rule*>> deciders;  // of the tensors that a rule matches
  for (const LogicalTensor& tensor : tensors) {
    const Decision decision = decide(tensor);
    const Rule* decider = decision.rule != nullptr ? decision.rule : decision.spared_by;
    acting.insert({decision.rule, decision.spared_by});
    for (const Rule& rule : rules) {
      if (is_users(rule) && !acting.contains(&rule) && rule.matches(tensor))
        deciders[&rule].insert(decider);
    }
  }
  const auto text_of = [](const Rule& rule) {
    return fmt::format("{} '{}'", origin_name(rule.origin), rule_text(rule));
  };
  std::vector<std::string> found;
  for (const Rule& rule : rules) {
    if (!is_users(rule)) continue;
    if (const std::string excess = rule.selector.excess(tensors); !excess.empty())
      found.push_back(fmt::format("{} {}", text_of(rule), excess));
    if (acting.contains(&rule)) continue;
    std::vector<std::string> reasons;
    for (const Rule& other : rules) {
      if (deciders[&rule].contains(&other)) reasons.push_back(text_of(other));
    }
    if (!reasons.empty()) reasons = {fmt::format("decided by {}", fmt::join(reasons, ", "))};
    if (deciders[&rule].contains(nullptr))
      reasons.emplace_back("left as they are, since no rule gives their whole name or role");
    found.push_back(fmt::format("{} selects nothing new: its tensors are {}", text_of(rule),
                                fmt::join(reasons, ", or ")));
  }
  return found;
}

Json Recipe::to_json() const {
  Json json = {{"to", to ? Json(scheme_word(to)) : Json(nullptr)},
               {"mtp", mtp ? Json(word_of(kMtpPolicies, *mtp)) : Json(nullptr)},
               {"choices", choices.to_json()},
               {"rules", Json::array()},
               {"allow", Json::object()}};
  for (const Rule& rule : rules) {
    Json row = {{"match", rule.selector.text()},
                {"scheme", scheme_word(rule.scheme)},
                {"origin", std::string(origin_name(rule.origin))}};
    if (rule.quantized_only) row["quantized_only"] = true;
    if (rule.narrows_saved) row["narrows_saved"] = true;
    if (rule.first_layer) row["first_layer"] = *rule.first_layer;
    if (!rule.from.empty()) row["from"] = rule.from;
    json["rules"].push_back(std::move(row));
  }
  for (const Allowance& row : kAllowances) {
    for (const Pattern& pattern : allow.*row.patterns)
      json["allow"][std::string(row.name)].push_back(pattern.text());
  }
  return json;
}

Json settings_of(const Json& recipe) {
  Json settings = {{"to", recipe.at("to")}, {"mtp", recipe.at("mtp")}};
  for (const auto& [key, value] : recipe.at("choices").items()) {
    std::string name = key;
    std::ranges::replace(name, '_', '-');
    if (!name.ends_with("-filled")) settings[name] = value;
  }
  // Rules by default follow from the other options.
  for (const RuleOrigin origin : {RuleOrigin::kRule, RuleOrigin::kRecipe}) {
    Json& rules = settings[std::string(origin_name(origin).substr(2))] = Json::array();
    for (const Json& rule : recipe.at("rules")) {
      if (rule.at("origin") == origin_name(origin))
        rules.push_back(fmt::format(
            "{}={}{}", rule.at("match").get<std::string>(), rule.at("scheme").get<std::string>(),
            rule.contains("from") ? fmt::format(" from {}", formats::text_at(rule, "from")) : ""));
    }
  }
  Json& allow = settings["allow"] = Json::array();
  for (const auto& [kind, patterns] : recipe.at("allow").items()) {
    for (const Json& pattern : patterns)
      allow.push_back(fmt::format("{}={}", kind, pattern.get<std::string>()));
  }
  return settings;
}

Rule parse_rule(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos)
    throw Error(ErrorCode::kInvalidArgument, "--rule '{}' is not SELECTOR=SCHEME", text);
  return make_rule(text.substr(0, equals), text.substr(equals + 1), RuleOrigin::kRule);
}

Rule make_rule(std::string_view selector, std::string_view word, RuleOrigin origin) {
  Rule rule{.selector = Selector(selector), .scheme = {}, .origin = origin};
  if (lower_case(word) != kKeep)
    rule.scheme = parse_scheme_word(word, fmt::format("rule '{}'", selector));
  return rule;
}

std::string_view scheme_meant(std::string_view word) {
  std::string name = lower_case(word);
  const auto* const row = std::ranges::find(kOtherNames, name, &OtherName::name);
  if (row != kOtherNames.end()) return row->ours;
  if (formats::find_scheme(name)) return {};
  std::ranges::replace(name, '_', '-');
  const auto scheme = formats::find_scheme(name);
  return scheme ? formats::scheme_facts(*scheme).to_word : std::string_view();
}

SchemeId parse_scheme_word(std::string_view word, std::string_view where) {
  const auto scheme = formats::find_scheme(lower_case(word));
  const bool is_only_read = scheme && is_read_only(*scheme);
  if (scheme && *scheme != SchemeId::kRaw && !is_only_read) return *scheme;
  if (lower_case(word) == kKeep) {
    throw Error(ErrorCode::kInvalidArgument,
                "{0}: no scheme '{1}': that is a word of rules, as SELECTOR=keep (leave {0} out: "
                "tensors without a rule are kept)",
                where, word);
  }
  std::vector<std::string_view> choices, words = {kKeep};
  for (const formats::SchemeFacts& row : formats::schemes()) {
    if (row.to_word.empty()) continue;
    choices.push_back(row.name);
    words.insert(words.end(), {row.name, row.to_word});
  }
  throw Error(ErrorCode::kInvalidArgument,
              "{}: {} '{}'{} (choose from {}, or keep; see ingot list schemes){}", where,
              is_only_read ? "scheme" : "no scheme", word,
              is_only_read ? " is read and never written" : "", fmt::join(choices, ", "),
              is_only_read ? "" : hint_for(lower_case(word), words));
}

std::string_view scale_search_name(quantize::ScaleSearch search) {
  return kSearches[static_cast<std::size_t>(search)];
}

namespace {

std::uint64_t parse_group_size(std::string_view word) {
  const auto* const found = std::ranges::find(kGroupWords, word);
  if (found != kGroupWords.end())
    return kGroupSizes.at(static_cast<std::size_t>(found - kGroupWords.begin()));
  refuse_word("--group-size", word, kGroupWords);
}

float parse_input_scale(std::string_view word) {
  const auto scale = number_from<float>(word);
  if (!scale || !std::isfinite(*scale) || !(*scale > 0))
    throw Error(ErrorCode::kInvalidArgument, "--input-scale '{}' is no number above zero", word);
  return *scale;
}

// The choice is one of these words, in the order of its values.
template <auto choice, const auto& words>
void take_word(std::string_view name, std::string_view word, Recipe& recipe) {
  auto& taken = recipe.choices.*choice;
  taken = parse_word<typename decltype(std::optional(taken))::value_type>(name, word, words);
}

template <auto choice, auto parse>
void take_parsed(std::string_view /*name*/, std::string_view word, Recipe& recipe) {
  recipe.choices.*choice = parse(word);
}

void take_to(std::string_view name, std::string_view word, Recipe& recipe) {
  recipe.to = parse_scheme_word(word, name);
}

void take_mtp(std::string_view name, std::string_view word, Recipe& recipe) {
  recipe.mtp = parse_word<MtpPolicy>(name, word, kMtpPolicies);
}

std::string_view parse_dialect(std::string_view word) {
  return require_dialect(word, "--dialect").name;
}

std::string parse_base_model(std::string_view word) {
  if (!is_hub_model(word)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--base-model '{}' is no name of a model on the hub (ORG/NAME)", word);
  }
  return std::string(word);
}

// Layers from the first to this one; returns their number.
std::uint64_t parse_layers(std::string_view word) {
  constexpr std::string_view kFirst = "0-";
  const std::string_view last = word.starts_with(kFirst) ? word.substr(kFirst.size()) : word;
  const auto number = number_from<std::uint64_t>(last);
  if (!number || (last == word && *number != 0)) {
    throw Error(ErrorCode::kInvalidArgument,
                "--layers '{}': layers are taken from the first on, as in --layers 0-1, for no "
                "model begins in its middle",
                word);
  }
  return *number + 1;
}

SchemeId parse_touched_scheme(std::string_view word) {
  // Records have the scheme's own name.
  const auto scheme = formats::find_scheme(lower_case(word));
  for (const std::string_view choice : kTouchedSchemes) {
    if (scheme && scheme == formats::find_scheme(choice)) return *scheme;
  }
  refuse_word("--keep-touched", word, kTouchedSchemes);
}

std::string parse_directory(std::string_view word) {
  return std::string(word);
}

void take_lora_scale(std::string_view name, std::string_view word, Recipe& recipe) {
  const auto scale = number_from<double>(word);
  if (!scale || !std::isfinite(*scale))
    throw Error(ErrorCode::kInvalidArgument, "{} '{}' is no number", name, word);
  recipe.choices.lora_options.scale = *scale;
}

void take_expert_order(std::string_view name, std::string_view word, Recipe& recipe) {
  recipe.choices.lora_options.expert_order =
      parse_word<formats::ExpertOrder>(name, word, formats::kExpertOrders);
}

constexpr RecipeOption kOptions[] = {
    {"--to", {}, take_to},
    {"--mtp", kMtpPolicies, take_mtp},
    {"--for", {}, take_parsed<&Choices::engine, parse_engine>},
    {"--dialect", {}, take_parsed<&Choices::dialect, parse_dialect>},
    {"--activations", kActivations, take_word<&Choices::activations, kActivations>},
    {"--fp8-grid", kGrids, take_word<&Choices::fp8_grid, kGrids>},
    {"--search", kSearches, take_word<&Choices::search, kSearches>},
    {"--group-size", kGroupWords, take_parsed<&Choices::group_size, parse_group_size>},
    {"--via", kVias, take_word<&Choices::via, kVias>},
    {"--input-scale", {}, take_parsed<&Choices::input_scale, parse_input_scale>},
    {"--experts", kExpertChoices, take_word<&Choices::experts, kExpertChoices>},
    {"--base-model", {}, take_parsed<&Choices::base_model, parse_base_model>},
    {"--layers", {}, take_parsed<&Choices::n_layers, parse_layers>},
    {"--lora", {}, take_parsed<&Choices::lora, parse_directory>},
    {"--lora-scale", {}, take_lora_scale},
    {"--expert-b-order", formats::kExpertOrders, take_expert_order},
    {"--keep-touched", kTouchedSchemes, take_parsed<&Choices::keep_touched, parse_touched_scheme>},
};

}  // namespace

std::span<const RecipeOption> recipe_options() {
  return kOptions;
}

const RecipeOption& recipe_option(std::string_view name) {
  return *std::ranges::find(kOptions, name, &RecipeOption::name);
}

void take_option(std::string_view name, std::string_view word, Recipe& recipe) {
  recipe_option(name).take(name, word, recipe);
  recipe.given.emplace_back(name);
}

namespace {

// The file, and the experts that it knows only from their peers.
void record_statistics(const std::string& key, const Hash128& hash, const FilledExperts& filled,
                       Json& json) {
  json[key] = hash.hex();
  if (filled.empty()) return;
  Json& record = json[key + "_filled"] = {{"experts", 0}, {"layers", Json::object()}};
  std::size_t n_experts = 0;
  for (const auto& [layer, experts] : filled) {
    record["layers"][layer] = experts;
    n_experts += experts.size();
  }
  record["experts"] = n_experts;
}

}  // namespace

Json Choices::to_json() const {
  Json json = {{"dialect", dialect},
               {"activations",
                activations ? Json(std::string(activations_name(*activations))) : Json(nullptr)},
               {"fp8_grid", fp8_grid ? Json(word_of(kGrids, *fp8_grid)) : Json()},
               {"search", word_of(kSearches, search)},
               {"via", word_of(kVias, via)},
               {"quantize_attention", quantize_attention}};
  if (gptq) json["gptq"] = true;
  if (group_size) json["group_size"] = *group_size;
  if (zero_points) json["zero_points"] = true;
  if (!base_model.empty()) json["base_model"] = base_model;
  if (n_layers) json["layers"] = fmt::format("0-{}", *n_layers - 1);
  if (!kept_experts.empty())
    json["kept_experts"] = formats::json_list(
        kept_experts, [](const formats::KeptExperts& kept) -> Json { return kept.to_json(); });
  if (experts) json["experts"] = word_of(kExpertChoices, *experts);
  if (engine != nullptr) json["for"] = std::string(engine->word);
  if (input_scale) json["input_scale"] = *input_scale;
  if (activation_scales)
    record_statistics("activation_scales", activation_scales->hash(), activation_scales->filled(),
                      json);
  if (importance) record_statistics("importance", importance->hash(), importance->filled(), json);
  if (kv_scales) record_statistics("kv_scales", kv_scales->hash(), {}, json);
  if (scales_from) json["scales_from"] = scales_from_fingerprint;
  for (const auto& editor : editors) json[std::string(editor->kind())].push_back(editor->record());
  if (keep_touched) json["keep_touched"] = std::string(formats::scheme_facts(*keep_touched).name);
  if (repair) json["repair"] = true;
  if (composed) {
    Json& words = json["compose"] = Json::object();
    if (composed->takes_base_side_files) words["side-files"] = "base";
    if (composed->rescales) words["fused"] = "rescale";
  }
  return json;
}

}  // namespace ingot::convert
