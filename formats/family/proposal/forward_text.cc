#include "formats/family/proposal/forward_text.h"

#include <algorithm>
#include <array>
#include <cctype>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/family/forward.h"
#include "formats/family/width.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::array<std::string_view, 8> kScopeNames = {
    "model", "all", "main", "dense", "moe", "full_attention", "linear_attention", "mtp"};
// Parameters with a word of their own, which may be the name of a width too.
constexpr std::array<std::string_view, 3> kOfWords = {"kind", "score", "head_norms"};

bool is_of_word(char c) {
  return c == '_' || c == '.' || std::isalnum(static_cast<unsigned char>(c)) != 0;
}

std::string value_text(const std::string& name, const ForwardValue& value,
                       const NamedWidths* widths) {
  const auto spelled = [&](const std::string& text) {
    return std::ranges::find(kOfWords, name) == kOfWords.end() ? spelled_out(text, widths) : text;
  };
  if (value.key.empty()) return spelled(value.text);
  std::string text = fmt::format("{{key: {}", value.key);
  if (!value.text.empty()) text += fmt::format(", absent: {}", value.text);
  for (const auto& [word, meant] : value.choices)
    text += fmt::format(", {}: {}", word, spelled(meant));
  return text + "}";
}

std::string part_text(const ForwardPart& part, const NamedWidths* widths) {
  std::vector<std::string> entries;
  if (part.where.scope != Scope::kLayer || !part.where.layers.empty())
    entries.push_back("layers: " + layers_text(part.where));
  for (const auto& [name, value] : part.parameters)
    entries.push_back(fmt::format("{}: {}", name, value_text(name, value, widths)));
  return fmt::format("{{{}}}", fmt::join(entries, ", "));
}

/// True if a config has another value than the only one of a key.
bool is_contrary(const ModelConfig& config, const std::string& key, const std::string& only) {
  const Json& value = config_value(config, key);
  if (value.is_null()) return false;
  if (only == "none") return value != false && value != 0;
  return (value.is_string() ? value.get<std::string>() : value.dump()) != only;
}

}  // namespace

std::string spelled_out(std::string_view text, const NamedWidths* names) {
  std::string out;
  for (std::size_t at = 0; at < text.size() && out.size() <= kMaxExpression;) {
    std::size_t end = at;
    while (end < text.size() && is_of_word(text[end]) == is_of_word(text[at])) ++end;
    const std::string_view word = text.substr(at, end - at);
    const Width* named = names == nullptr ? nullptr : names->find(word);
    if (named == nullptr) {
      out += word;
    } else {
      const std::string inner = spelled_out(named->text(), names);
      const bool is_word = std::ranges::all_of(inner, is_of_word) || word.size() == text.size();
      out += is_word ? inner : fmt::format("({})", inner);
    }
    at = end;
  }
  return out;
}

std::string layers_text(const TensorRule& rule) {
  std::vector<std::string> texts;
  if (rule.layers.empty() || rule.scope != Scope::kLayer)
    texts.emplace_back(kScopeNames.at(static_cast<std::size_t>(rule.scope)));
  for (const LayerCondition& condition : rule.layers) {
    if (condition.values.empty()) {
      texts.push_back(fmt::format("{{{}: {}, from: {}}}",
                                  condition.is_for_listed ? "listed_in" : "not_listed_in",
                                  condition.key, condition.first));
    } else {
      texts.push_back(
          fmt::format("{{{}: [\"{}\"]}}", condition.key, fmt::join(condition.values, "\", \"")));
    }
  }
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

ForwardText forward_text(const Family& family, const ModelConfig& config) {
  const Forward& forward = *family.forward;
  const NamedWidths* widths = family.widths;
  ForwardText text;
  std::vector<std::string> parts;
  for (const ForwardPart& part : forward.parts) parts.push_back(part_text(part, widths));
  text.mixers = fmt::format("  {}:\n  - {}\n", forward.are_blocks ? "blocks" : "mixer",
                            fmt::join(parts, "\n  - "));
  if (forward.mtp != "joined") text.mixers += fmt::format("  mtp: {}\n", forward.mtp);
  for (const std::string& need : forward.needs) text.needs.push_back(spelled_out(need, widths));
  if (forward.mixture)
    text.mixture = fmt::format("  mixture: {}\n", part_text(*forward.mixture, widths));
  if (!forward.mlp.parameters.empty())
    text.mlp = fmt::format("  mlp: {}\n", part_text(forward.mlp, widths));
  if (!forward.model.parameters.empty())
    text.model = fmt::format("  model: {}\n", part_text(forward.model, widths));
  for (const auto& [key, value] : forward.only) {
    if (!is_contrary(config, key, value.text)) text.only.emplace_back(key, value.text);
  }
  return text;
}

std::string joined_text(const ForwardText& mixers, const ForwardText& mixture,
                        const ForwardText& model) {
  std::vector<std::string> only;
  for (const auto& [key, value] : mixers.only) only.push_back(fmt::format("{}: {}", key, value));
  std::vector<std::string> needs;
  const auto add_needs = [&](const ForwardText& of, bool are_of_experts) {
    for (const std::string& need : of.needs) {
      if ((need == "n_routed_experts") == are_of_experts) needs.push_back(need);
    }
  };
  add_needs(mixers, false);
  add_needs(mixture, true);
  const auto list = [](std::string_view key, char open, const auto& entries, char close) {
    return entries.empty()
               ? std::string()
               : fmt::format("  {}: {}{}{}\n", key, open, fmt::join(entries, ", "), close);
  };
  return fmt::format("forward:\n{}{}{}{}{}{}", list("only", '{', only, '}'), mixers.mixers,
                     list("needs", '[', needs, ']'), mixture.mixture, mixers.mlp, model.model);
}

}  // namespace ingot::formats
