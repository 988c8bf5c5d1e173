#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"

namespace ingot::formats {

/// Names of widths, for use in others.
class NamedWidths;

/// A width of a model: an expression over its config, as families have it in their shapes
/// (`num_attention_heads * head_dim`). It has numbers, `+ - * /`, parentheses and `A or B`, which
/// is B where A is 0. Numbers are whole and never below 0: `-` stops at 0, `/` rounds down, and
/// something divided by 0 is 0. A name is that of a number of ModelConfig, which it has whatever
/// config.json calls it, else a key of the text model, with dots before those of inner objects:
/// false is 0, true is 1, null and a missing key are 0, or N with `KEY default N`. Where the config
/// has a list with an entry per layer in place of a number, each layer has its own.
class Width {
 public:
  /// Throws kInvalidArgument for a text that is no expression, is longer than 200 characters, has
  /// more than 16 parentheses inside each other, or more than 64 steps once `names` are put in.
  static Width parse(std::string_view text, const NamedWidths* names = nullptr);

  /// The value of the expression in `layer`; MTP layers, which a list may lack, have 0 then. 0 when
  /// the config lacks a key that it needs. Without a layer a number of ModelConfig is the largest
  /// of all layers. Throws kLimit when it does not fit 64 bits; kCorrupt, naming the key, for a key
  /// without a number up to 2^32, and for a list without a layer.
  [[nodiscard]] std::uint64_t size(const ModelConfig& config,
                                   std::optional<std::uint32_t> layer = std::nullopt) const;
  /// True if the config has a list for a name in the expression.
  [[nodiscard]] bool differs_by_layer(const ModelConfig& config) const;
  /// The names in the expression that are 0 in this config and layer.
  [[nodiscard]] std::vector<std::string> missing(
      const ModelConfig& config, std::optional<std::uint32_t> layer = std::nullopt) const;
  /// True if a name occurs in the expression.
  [[nodiscard]] bool mentions(std::string_view name) const;
  /// N where it is `name` or `N * name`.
  [[nodiscard]] std::optional<std::uint64_t> times(std::string_view name) const;
  /// The text of the expression as it was written.
  [[nodiscard]] const std::string& text() const { return text_; }

  /// True if both compute the same in the same steps.
  friend bool operator==(const Width& a, const Width& b) { return a.steps_ == b.steps_; }

 private:
  friend class WidthParser;
  enum class Kind : std::uint8_t {
    kNumber,
    kField,
    kKey,
    kAdd,
    kSubtract,
    kMultiply,
    kDivide,
    kOr
  };
  /// One step of a machine with a stack.
  struct Step {
    Kind kind{};
    std::uint64_t number = 0;  ///< kNumber: the number; kKey: the default of the key
    std::string key = {};      ///< kField, kKey
    std::uint64_t ModelConfig::*field = nullptr;
    friend bool operator==(const Step&, const Step&) = default;
  };
  static std::uint64_t value_of(const Step& step, const ModelConfig& config,
                                std::optional<std::uint32_t> layer);

  std::string text_;
  std::vector<Step> steps_;
};

class NamedWidths {
 public:
  /// Adds a width. Throws kInvalidArgument for a text that is no name, or is a name already.
  void add(std::string_view name, Width width);
  [[nodiscard]] const Width* find(std::string_view name) const;
  [[nodiscard]] bool empty() const { return rows_.empty(); }

 private:
  struct Row {
    std::string name;
    Width width;
  };
  std::vector<Row> rows_;
};

/// The value of a key of the text model, with dots before those of inner objects; null where it is
/// missing.
const Json& config_value(const ModelConfig& config, std::string_view path);

}  // namespace ingot::formats
