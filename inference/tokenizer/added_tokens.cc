#include "inference/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::inference {
namespace {

// Real ones have less than 100. A search takes this many steps per byte of the text at worst.
constexpr std::size_t kMaxTokenBytes = 1024;

void check_token_size(std::string_view content) {
  if (content.size() <= kMaxTokenBytes) return;
  throw Error(ErrorCode::kLimit, "added token {} has {} bytes, at most {} are accepted",
              quote_text(content), content.size(), kMaxTokenBytes);
}

bool stands_alone(std::string_view text, const Span& span) {
  const bool joins_left =
      span.begin > 0 && is_word_character(code_point_before(text, span.begin).value);
  const bool joins_right =
      span.end < text.size() && is_word_character(code_point_at(text, span.end).value);
  return !joins_left && !joins_right;
}

}  // namespace

TextFinder::TextFinder(const std::vector<std::string>& texts) {
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty()) continue;
    sorted_.emplace_back(texts[i], i);
    starts_[static_cast<unsigned char>(texts[i].front())] = true;
  }
  std::ranges::sort(sorted_);
}

std::optional<TextFinder::Found> TextFinder::find(std::string_view text, std::size_t from,
                                                  TextWork& work) const {
  if (sorted_.empty()) return std::nullopt;
  for (std::size_t begin = from; begin < text.size(); ++begin) {
    if (!starts_[static_cast<unsigned char>(text[begin])]) continue;
    work.count();
    if (auto found = longest_at(text, begin)) return found;
  }
  return std::nullopt;
}

// Narrows the sorted list byte by byte to those that the text continues with. Those that end at
// some depth come first there.
std::optional<TextFinder::Found> TextFinder::longest_at(std::string_view text,
                                                        std::size_t begin) const {
  std::optional<Found> longest;
  auto low = sorted_.begin();
  auto high = sorted_.end();
  for (std::size_t depth = 0; begin + depth < text.size(); ++depth) {
    const auto byte_at = [depth](const auto& entry) {
      return static_cast<unsigned char>(entry.first[depth]);
    };
    const auto byte = static_cast<unsigned char>(text[begin + depth]);
    low = std::ranges::lower_bound(low, high, byte, std::ranges::less(), byte_at);
    high = std::ranges::upper_bound(low, high, byte, std::ranges::less(), byte_at);
    if (low == high) break;
    if (low->first.size() != depth + 1) continue;
    longest = {.span = {begin, begin + depth + 1}, .index = low->second};
    while (low != high && low->first.size() == depth + 1) ++low;
  }
  return longest;
}

AddedTokens AddedTokens::parse(const formats::Json* value, const Vocabulary& vocabulary,
                               const Normalizer& normalizer) {
  AddedTokens result;
  if (value == nullptr) return result;
  for (std::size_t i = 0; i < value->size(); ++i) {
    const Component component((*value)[i], "", fmt::format("added_tokens[{}]", i));
    AddedToken token{.content = component.text("content"),
                     .single_word = component.boolean("single_word", false),
                     .left_strip = component.boolean("lstrip", false),
                     .right_strip = component.boolean("rstrip", false),
                     .special = component.boolean("special", false)};
    token.id = token_id(component.get("id"), component, token.content);
    token.normalized = component.boolean("normalized", !token.special);
    result.add(std::move(token), component, vocabulary);
  }
  result.make_finders(normalizer);
  return result;
}

void AddedTokens::add(AddedToken token, const Component& component, const Vocabulary& vocabulary) {
  const auto known_id = vocabulary.find(token.content);
  const std::string* known_text = vocabulary.text(token.id);
  if (known_id && *known_id != token.id) {
    component.refuse(fmt::format("gives token {} id {}, but the model's vocab gives it {}",
                                 quote_text(token.content), token.id, *known_id));
  }
  if (known_text != nullptr && *known_text != token.content) {
    component.refuse(fmt::format("gives id {} to {}, but the model's vocab gives it to {}",
                                 token.id, quote_text(token.content), quote_text(*known_text)));
  }
  const std::size_t index = tokens_.size();
  if (!by_id_.emplace(token.id, index).second ||
      !by_content_.emplace(token.content, index).second) {
    component.refuse(fmt::format("repeats the id {} or the text {} of another added token",
                                 token.id, quote_text(token.content)));
  }
  size_ = std::max(size_, static_cast<std::size_t>(token.id) + 1);
  tokens_.push_back(std::move(token));
}

void AddedTokens::make_finders(const Normalizer& normalizer) {
  std::vector<std::string> raw(tokens_.size()), normalized(tokens_.size());
  TextWork work;  // work of all tokens together
  for (std::size_t i = 0; i < tokens_.size(); ++i) {
    const AddedToken& token = tokens_[i];
    if (token.content.empty()) continue;
    check_token_size(token.content);
    if (token.normalized) {
      work.give(token.content.size());
      normalized[i] = normalizer.apply(token.content, work);
      check_token_size(normalized[i]);
    } else {
      raw[i] = token.content;
    }
  }
  raw_ = TextFinder(raw);
  normalized_ = TextFinder(normalized);
}

const AddedToken* AddedTokens::by_id(std::int32_t id) const {
  const auto at = by_id_.find(id);
  return at == by_id_.end() ? nullptr : &tokens_[at->second];
}

const AddedToken* AddedTokens::by_content(std::string_view content) const {
  const auto at = by_content_.find(std::string(content));
  return at == by_content_.end() ? nullptr : &tokens_[at->second];
}

std::vector<Stretch> AddedTokens::cut(std::string_view text, Round round, TextWork& work) const {
  const TextFinder& finder = round == Round::kRaw ? raw_ : normalized_;
  std::vector<Stretch> stretches;
  std::size_t done = 0;
  const auto add_text = [&](std::size_t end) {
    if (done < end) stretches.push_back({.text = text.substr(done, end - done), .id = {}});
  };
  for (auto found = finder.find(text, 0, work); found;
       found = finder.find(text, found->span.end, work)) {
    const AddedToken& token = tokens_[found->index];
    auto [begin, end] = found->span;
    // White space that the token before took along cannot be found again.
    if (begin < done || (token.single_word && !stands_alone(text, found->span))) continue;
    const std::string_view before = text.substr(done, begin - done), behind = text.substr(end);
    if (token.left_strip) begin = done + without_white_space(before, false, true).size();
    if (token.right_strip) {
      end = text.size() - without_white_space(behind, true, false).size();
    }
    add_text(begin);
    stretches.push_back({.text = text.substr(begin, end - begin), .id = token.id});
    done = end;
  }
  add_text(text.size());
  return stretches;
}

}  // namespace ingot::inference
