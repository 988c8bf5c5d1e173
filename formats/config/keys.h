#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/json/json_fields.h"

// The keys of config.json, a row each: all readers take spelling, type and absence from here.

namespace ingot::formats {

/// A value that a key may have; ConfigKeys refuses others.
enum class KeyType : std::uint8_t {
  kAny,    ///< value of any type, judged by its readers
  kFlag,   ///< true or false
  kWord,   ///< a string
  kReal,   ///< a number from 0 on
  kWidth,  ///< a whole number up to 2^32, or a list with one for each layer
  kCount,  ///< number as kWidth, up to 2^20: experts
  kOne     ///< number as kCount, equal in all layers
};

/// How ConfigMeaning takes a key.
enum class KeySense : std::uint8_t {
  kModel,      ///< a parameter of the model; its meaning has the name of the row
  kDerived,    ///< a meaning is computed from it and from others
  kElsewhere,  ///< no parameter of the model as it is loaded: who saved the file, training, or
               ///< compared elsewhere (quantization, dtypes, the number of MTP layers)
  kFamily      ///< parameter that families give a meaning: compared as it is written
};

/// The field of ModelConfig that has the value.
using KeyField = std::variant<std::monostate, std::uint64_t ModelConfig::*, double ModelConfig::*,
                              bool ModelConfig::*, std::string ModelConfig::*>;

struct KeyRow {
  /// The usual spelling, under which readers ask for the key (a parameter of rope behind `rope.`),
  /// then others, of which the first that a config has counts.
  std::vector<std::string> spellings;
  KeyType type = KeyType::kAny;
  KeySense sense = KeySense::kElsewhere;
  KeyField field = {};
  std::string_view absent = {};  ///< JSON that the key's absence means to every reader; empty: none

  [[nodiscard]] const std::string& key() const { return spellings.front(); }
};

std::span<const KeyRow> key_rows();
/// The words of a text between blanks.
std::vector<std::string> words_in(std::string_view text);

/// The row of a key in any spelling; null where there is none.
const KeyRow* find_key(std::string_view key);

/// The spelling of a key that `keys` has, else the usual one. Null counts as missing.
const std::string& spelling_in(const Json& keys, std::string_view key);

/// The layers of a model.
struct LayerCounts {
  std::uint64_t main = 0, mtp = 0;  ///< numbers of layers; MTP layers come after main ones
};

/// True if `value` is a list with an entry for each main layer; it may go on over the MTP layers.
bool is_per_layer(const Json& value, LayerCounts layers);

/// A number, which may be written once per layer.
struct LayerNumber {
  std::optional<std::uint64_t> largest;  ///< nullopt: the config does not have it
  std::vector<std::uint64_t> by_layer;   ///< empty: the same in all
};

/// Reads the keys of a config, or of its text model, by their rows: the one place that refuses a
/// value for its type or size (kCorrupt, with file and key). Each is asked for by the usual
/// spelling, which must have a row. Null counts as missing.
class ConfigKeys {
 public:
  static constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;
  static constexpr std::uint64_t kMaxWidth = std::uint64_t{1} << 32;

  /// `keys` and `where` must outlive this.
  ConfigKeys(const Json& keys, std::string_view where);

  /// The first spelling that is there, else the usual one.
  [[nodiscard]] const char* spelling(std::string_view key) const;
  [[nodiscard]] const Json* find(std::string_view key) const { return fields_.find(spelling(key)); }
  [[nodiscard]] LayerNumber number(std::string_view key) const;
  /// A number that is one for the model.
  [[nodiscard]] std::uint64_t one(std::string_view key, std::uint64_t if_missing = 0) const {
    return number(key).largest.value_or(if_missing);
  }
  /// Every how many layers; 0 is refused.
  [[nodiscard]] std::uint64_t step(std::string_view key, std::uint64_t if_missing = 1) const;
  [[nodiscard]] std::optional<double> real(std::string_view key) const;
  [[nodiscard]] bool flag(std::string_view key) const {
    return fields_.boolean(spelling(key), false);
  }
  [[nodiscard]] std::string word(std::string_view key) const {
    return fields_.text(spelling(key), "");
  }
  [[nodiscard]] const Json* list(std::string_view key) const {
    return fields_.optional_array(spelling(key));
  }
  /// The layers by the keys; 0 where a key is missing, or its number is wrong.
  [[nodiscard]] LayerCounts layers() const { return layers_; }
  [[nodiscard]] const JsonFields& fields() const { return fields_; }
  [[noreturn]] void refuse(std::string_view key, std::string_view fact) const {
    fields_.refuse(spelling(key), fact);
  }

 private:
  JsonFields fields_;
  LayerCounts layers_;
};

}  // namespace ingot::formats
