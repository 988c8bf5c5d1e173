#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"

// The sides of tensors in terms of a config.

namespace ingot::formats {

/// The shape of a tensor in each layer that has one.
using ShapesByLayer = std::map<std::uint32_t, const Shape*>;

/// Expressions for widths, and the sizes that a config gives them. `likely` is a list of
/// expressions, with ", " between them, that are tried first; one that this config cannot compute
/// fits nothing.
class ConfigWidths {
 public:
  /// `config` must outlive this.
  explicit ConfigWidths(const ModelConfig& config);

  /// True if an expression in `likely` has this size.
  [[nodiscard]] bool is_one_of(std::uint64_t size, std::string_view likely) const;
  /// An expression of this size; the number itself where the config has none. Adds to `guesses` the
  /// reasons why it may be wrong.
  [[nodiscard]] std::string side(std::uint64_t size, std::string_view likely,
                                 std::string& guesses) const;
  /// An expression of the size that dimension `at` has in each layer; empty where there is none.
  [[nodiscard]] std::string side_by_layer(const ShapesByLayer& layers, std::size_t at,
                                          std::string_view likely) const;
  /// The key `heads` of a row with this shape, where its heads are not those of most layers: heads
  /// by layer, or those of a second set of widths (`swa_num_attention_heads`); else empty.
  [[nodiscard]] std::string heads_of(std::string_view shape) const;

 private:
  [[nodiscard]] std::uint64_t size_of(const std::string& text,
                                      std::optional<std::uint32_t> layer = std::nullopt) const;
  void offer(const std::string& text);
  /// The expressions of a list, and what they are in other sets of widths.
  [[nodiscard]] std::vector<std::string> texts_of(std::string_view likely) const;

  const ModelConfig& config_;
  std::multimap<std::uint64_t, std::string> widths_;
  std::vector<std::string> by_layer_;  // keys with a number per layer
  std::vector<std::string> prefixes_;  // words before those of another set of widths
};

}  // namespace ingot::formats
