#include "formats/experts/renumbered_names.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/family/family_check.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

bool is_digit(char letter) {
  return letter >= '0' && letter <= '9';
}
bool is_of_word(char letter) {
  return is_digit(letter) || letter == '_' || (letter >= 'a' && letter <= 'z') ||
         (letter >= 'A' && letter <= 'Z');
}

// The number behind a word of names, and its place in the text.
struct PlacedNumber {
  std::size_t begin = 0, end = 0;
  std::uint32_t value = 0;
};
std::optional<PlacedNumber> number_behind(const std::string& text, std::string_view word) {
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) {
    if (at > 0 && is_of_word(text[at - 1])) continue;
    const std::size_t begin = at + word.size();
    std::size_t end = begin;
    while (end < text.size() && is_digit(text[end])) ++end;
    const auto value = number_from(std::string_view(text).substr(begin, end - begin));
    // Another letter behind it makes it a part of a word or of a pattern.
    if (value && (end == text.size() || !is_of_word(text[end])))
      return PlacedNumber{.begin = begin, .end = end, .value = *value};
  }
  return std::nullopt;
}

// The number behind the first of these words that has one.
std::optional<PlacedNumber> number_behind(const std::string& text,
                                          const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    if (auto number = number_behind(text, word)) return number;
  }
  return std::nullopt;
}

// The word before a mark of a pattern, with its dot.
void add_word_before(std::string_view mark, std::string_view pattern,
                     std::set<std::string>& words) {
  const std::size_t at = pattern.find(mark);
  if (at == std::string_view::npos || at < 2) return;
  const std::size_t before = pattern.rfind('.', at - 2);
  const std::size_t begin = before == std::string_view::npos ? 0 : before + 1;
  words.emplace(pattern.substr(begin, at - begin));
}

}  // namespace

ExpertName::ExpertName(const Checkpoint& source, const LogicalTensor& tensor)
    : number_(std::to_string(*tensor.expert)) {
  std::string name =
      row_name(source.family(), source.config(), *tensor.rule, tensor.layer, std::nullopt);
  const std::size_t mark = name.find(kExpertMark);
  INGOT_CHECK(mark != std::string::npos);
  head_ = name.substr(0, mark);
}

std::optional<std::string> ExpertName::with(std::uint32_t number, std::string_view name) const {
  if (!name.starts_with(head_) || !name.substr(head_.size()).starts_with(number_))
    return std::nullopt;
  const std::string_view rest = name.substr(head_.size() + number_.size());
  if (!rest.empty() && is_digit(rest.front())) return std::nullopt;
  return fmt::format("{}{}{}", head_, number, rest);
}

ExpertNumbers::ExpertNumbers(const Checkpoint& source,
                             const std::map<std::uint32_t, std::vector<std::uint32_t>>& kept)
    : kept_(kept),
      mtp_prefix_(source.family().mtp_layers),
      n_main_(source.config().num_hidden_layers) {
  std::set<std::string> experts, layers;
  for (const TensorRule& rule : source.family().rules) {
    if (!has_mark(rule.pattern, kExpertMark)) continue;
    add_word_before(kExpertMark, rule.pattern, experts);
    add_word_before(kLayerMark, rule.pattern, layers);
    if (!has_mark(rule.pattern, kMtpMark)) continue;
    mtp_prefix_ = rule.pattern.substr(0, rule.pattern.find(kMtpMark));
  }
  expert_words_.assign(experts.begin(), experts.end());
  layer_words_.assign(layers.begin(), layers.end());
}

std::optional<std::uint32_t> ExpertNumbers::layer_of(const std::string& plain) const {
  if (!mtp_prefix_.empty()) {
    if (const auto mtp = number_behind(plain, mtp_prefix_))
      return static_cast<std::uint32_t>(n_main_ + mtp->value);
  }
  const auto layer = number_behind(plain, layer_words_);
  return layer ? std::optional(layer->value) : std::nullopt;
}

std::string ExpertNumbers::original(std::string_view name) const {
  std::string result(name);
  const auto expert = number_behind(result, expert_words_);
  const auto layer = expert ? layer_of(result) : std::nullopt;
  const auto kept = layer ? kept_.find(*layer) : kept_.end();
  if (kept == kept_.end() || expert->value >= kept->second.size()) return result;
  return result.replace(expert->begin, expert->end - expert->begin,
                        std::to_string(kept->second[expert->value]));
}

std::optional<std::string> ExpertNumbers::renumbered(std::string_view name) const {
  // Dots of a regular expression are found without their backslash.
  std::string plain;
  std::vector<std::size_t> place;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '\\' && name.substr(i + 1).starts_with('.')) continue;
    plain += name[i];
    place.push_back(i);
  }
  const auto expert = number_behind(plain, expert_words_);
  if (!expert) return std::string(name);
  const auto layer = layer_of(plain);
  std::set<std::optional<std::uint32_t>> numbers;
  for (const auto& [of_layer, experts] : kept_) {
    if (layer && *layer != of_layer) continue;
    const auto found = std::ranges::lower_bound(experts, expert->value);
    const bool stays = found != experts.end() && *found == expert->value;
    numbers.insert(stays ? std::optional(static_cast<std::uint32_t>(found - experts.begin()))
                         : std::nullopt);
  }
  if (numbers.empty()) return std::string(name);
  if (numbers.size() > 1) {
    throw Error(ErrorCode::kUnsupported,
                "'{}' names expert {} of several layers, which keep other experts each: it cannot "
                "be renumbered (name the layers)",
                name, expert->value)
        .in_file("config.json");
  }
  if (!*numbers.begin()) return std::nullopt;
  std::string result(name.substr(0, place[expert->begin]));
  result += std::to_string(**numbers.begin());
  return result.append(name.substr(place[expert->end - 1] + 1));
}

void ExpertNumbers::renumber(Json& description) const {
  if (description.is_object()) {
    Json object = Json::object();
    for (auto& [key, value] : description.items()) {
      const auto name = renumbered(key);
      if (!name) continue;
      renumber(value);
      object[*name] = std::move(value);
    }
    description = std::move(object);
  } else if (description.is_array()) {
    Json list = Json::array();
    for (Json& value : description) {
      if (value.is_string()) {
        if (auto name = renumbered(value.get_ref<const std::string&>())) list.push_back(*name);
        continue;
      }
      renumber(value);
      list.push_back(std::move(value));
    }
    description = std::move(list);
  }
}

}  // namespace ingot::formats
