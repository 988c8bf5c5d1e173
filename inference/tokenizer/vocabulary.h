#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/tokenizer/component.h"

namespace ingot::inference {

/// Ids are below this; the largest vocabularies have a few hundred thousand.
inline constexpr std::uint64_t kMaxTokens = std::uint64_t{1} << 22;

/// The model's tokens, without the added ones: text to id and back.
class Vocabulary {
 public:
  /// From the object `vocab` of the model. An id that is no whole number, too large or given twice
  /// is kCorrupt or kLimit.
  static Vocabulary parse(const Component& model);

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// Null for ids that no token has.
  [[nodiscard]] const std::string* text(std::int32_t id) const;
  /// The highest id + 1.
  [[nodiscard]] std::size_t size() const { return texts_.size(); }

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> texts_;  // keys of ids_, which stay where they are
};

/// The id in a field of the file; kLimit when it is too large, kCorrupt when it is no id.
std::int32_t token_id(const formats::Json& value, const Component& component,
                      std::string_view token);

}  // namespace ingot::inference
