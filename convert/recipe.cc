#include "convert/recipe.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::convert {

using formats::Json;
using formats::LogicalTensor;
using formats::SchemeId;

namespace {

constexpr std::string_view kRolePrefix = "role:";
constexpr std::string_view kKeep = "keep";

struct Allowance {
  std::string_view name;
  std::vector<Pattern> Allowances::*patterns;
};
constexpr std::array kAllowances = {Allowance{"nan-code", &Allowances::nan_code},
                                    Allowance{"zero-scale", &Allowances::zero_scale},
                                    Allowance{"unknown-tensor", &Allowances::unknown_tensor}};

std::string scheme_word(const std::optional<SchemeId>& scheme) {
  return std::string(scheme ? formats::scheme_facts(*scheme).name : kKeep);
}

std::string_view origin_name(RuleOrigin origin) {
  switch (origin) {
    case RuleOrigin::kRule:
      return "--rule";
    case RuleOrigin::kRecipe:
      return "--recipe";
    case RuleOrigin::kDefault:
      return "default";
  }
  return "";
}

}  // namespace

bool Rule::matches(const LogicalTensor& tensor) const {
  if (quantized_only && !formats::scheme_facts(tensor.encoding.scheme).quantized) return false;
  if (!pattern) return role == (tensor.rule != nullptr ? tensor.rule->role : formats::Role::kOther);
  return pattern->matches(tensor.name);
}

void Allowances::add(std::string_view text) {
  const std::size_t equals = text.find('=');
  for (const Allowance& row : kAllowances) {
    if (text.substr(0, equals) != row.name) continue;
    if (equals == std::string_view::npos || equals + 1 == text.size()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--allow {0} needs a pattern: {0}=PATTERN", row.name));
    }
    (this->*row.patterns).emplace_back(text.substr(equals + 1));
    return;
  }
  throw Error(
      ErrorCode::kInvalidArgument,
      fmt::format(
          "--allow '{}' is none of nan-code=PATTERN, zero-scale=PATTERN, unknown-tensor=PATTERN",
          text));
}

Decision Recipe::decide(const LogicalTensor& tensor) const {
  for (const Rule& rule : rules) {
    if (rule.matches(tensor)) return {.rule = &rule, .scheme = rule.scheme};
  }
  return {};
}

void Recipe::check_all_matched(std::span<const LogicalTensor> tensors) const {
  ErrorList errors;
  for (const Rule& rule : rules) {
    if (rule.origin == RuleOrigin::kDefault) continue;
    if (std::any_of(tensors.begin(), tensors.end(),
                    [&](const LogicalTensor& t) { return rule.matches(t); }))
      continue;
    errors.add(Error(
        ErrorCode::kInvalidArgument,
        fmt::format("{} '{}={}' matches no tensor (see ingot inspect --tensors for the names)",
                    origin_name(rule.origin), rule.selector, scheme_word(rule.scheme))));
  }
  errors.throw_if_any();
}

Json Recipe::to_json() const {
  Json json = {{"to", to ? Json(scheme_word(to)) : Json(nullptr)},
               {"mtp", mtp == MtpPolicy::kDrop ? "drop" : "convert"},
               {"rules", Json::array()},
               {"allow", Json::object()}};
  for (const Rule& rule : rules) {
    Json row = {{"match", rule.selector},
                {"scheme", scheme_word(rule.scheme)},
                {"origin", std::string(origin_name(rule.origin))}};
    if (rule.quantized_only) row["quantized_only"] = true;
    json["rules"].push_back(std::move(row));
  }
  for (const Allowance& row : kAllowances) {
    for (const Pattern& pattern : allow.*row.patterns)
      json["allow"][std::string(row.name)].push_back(pattern.text());
  }
  return json;
}

Rule parse_rule(std::string_view text) {
  const std::size_t equals = text.rfind('=');
  if (equals == std::string_view::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--rule '{}' is not PATTERN=SCHEME", text));
  }
  return make_rule(text.substr(0, equals), text.substr(equals + 1), RuleOrigin::kRule);
}

Rule make_rule(std::string_view selector, std::string_view word, RuleOrigin origin) {
  Rule rule{.selector = std::string(selector), .scheme = {}, .origin = origin, .pattern = nullptr};
  if (word != kKeep) rule.scheme = parse_scheme_word(word, fmt::format("rule '{}'", selector));
  if (selector.starts_with(kRolePrefix)) {
    const std::string_view name = selector.substr(kRolePrefix.size());
    const auto role = formats::find_role(name);
    if (!role) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("rule '{}': no role '{}' (see ingot inspect for the roles of a checkpoint)",
                      selector, name));
    }
    rule.role = *role;
  } else {
    rule.pattern = std::make_shared<const Pattern>(selector);
  }
  return rule;
}

SchemeId parse_scheme_word(std::string_view word, std::string_view where) {
  const auto scheme = formats::find_scheme(word);
  if (scheme && *scheme != SchemeId::kRaw) return *scheme;
  std::string choices;
  for (const formats::SchemeFacts& row : formats::schemes()) {
    if (row.id != SchemeId::kRaw) choices += fmt::format("{}, ", row.name);
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{}: no scheme '{}' (choose from {}or keep; see ingot list schemes)",
                          where, word, choices));
}

MtpPolicy parse_mtp_policy(std::string_view word, std::string_view where) {
  if (word == "convert") return MtpPolicy::kConvert;
  if (word == "drop") return MtpPolicy::kDrop;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} '{}' is neither convert nor drop", where, word));
}

void add_default_rules(Recipe& recipe) {
  // What the source holds quantized goes to the target; what its makers left alone stays, whatever
  // its dtype.
  if (!recipe.to) return;
  Rule rule = make_rule("*", formats::scheme_facts(*recipe.to).name, RuleOrigin::kDefault);
  rule.quantized_only = true;
  recipe.rules.push_back(std::move(rule));
}

}  // namespace ingot::convert
