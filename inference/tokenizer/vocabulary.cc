#include "inference/tokenizer/vocabulary.h"

#include <limits>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"

namespace ingot::inference {

Vocabulary Vocabulary::parse(const Component& model) {
  const formats::Json& vocab = model.get("vocab");
  if (!vocab.is_object()) model.refuse("vocab", "is not an object");
  Vocabulary result;
  result.ids_.reserve(vocab.size());
  for (const auto& [text, value] : vocab.items()) {
    const std::int32_t id = token_id(value, model, text);
    const auto index = static_cast<std::size_t>(id);
    if (index >= result.texts_.size()) result.texts_.resize(index + 1, nullptr);
    if (result.texts_[index] != nullptr) {
      model.refuse(fmt::format("gives id {} to both {} and {}", id,
                               quote_text(*result.texts_[index]), quote_text(text)));
    }
    result.texts_[index] = &result.ids_.emplace(text, id).first->first;
  }
  return result;
}

std::optional<std::int32_t> Vocabulary::find(std::string_view text) const {
  const auto at = ids_.find(text);
  return at == ids_.end() ? std::nullopt : std::optional(at->second);
}

const std::string* Vocabulary::text(std::int32_t id) const {
  const auto index = static_cast<std::size_t>(id);
  return id < 0 || index >= texts_.size() ? nullptr : texts_[index];
}

std::int32_t token_id(const formats::Json& value, const Component& component,
                      std::string_view token) {
  const auto id = formats::whole_number(value, kMaxTokens - 1);
  if (id) return static_cast<std::int32_t>(*id);
  const bool is_large =
      formats::whole_number(value, std::numeric_limits<std::uint64_t>::max()).has_value();
  throw Error(is_large ? ErrorCode::kLimit : ErrorCode::kCorrupt,
              fmt::format("{} gives token {} an id that is not a whole number below {}",
                          component.path(), quote_text(token), kMaxTokens));
}

}  // namespace ingot::inference
