#pragma once

#include <map>
#include <string>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// One thing that config.json says.
struct ConfigValue {
  JsonValue value;   ///< value in one form for all spellings: one end-of-text id is no list, ...
  std::string path;  ///< its place in the file: `rope_scaling.factor`
};

/// The meaning of config.json, independent of the names of its keys: old spellings and those that
/// transformers 5 derives and writes (head_dim, layer_types, mlp_layer_types, ...) become meanings,
/// each with one value. The meaning of a key in `text_config`, or in another holder of the text
/// model, begins with that word. Left out are the quantization, the dtype, the number of MTP
/// layers, who saved the file, and keys that concern only training.
class ConfigMeaning {
 public:
  using Values = std::map<std::string, ConfigValue, std::less<>>;

  explicit ConfigMeaning(const Json& config);

  /// Values that are said or derived, by meaning (`rope.factor`, `hidden_size`). A value
  /// that every reader also takes where it is absent is left out.
  [[nodiscard]] const Values& known() const { return known_; }
  /// Keys that no row of the table knows.
  [[nodiscard]] const Values& unknown() const { return unknown_; }
  /// Two spellings of one meaning that differ, or a derived key that differs from its origin: a
  /// sentence each.
  [[nodiscard]] const std::vector<std::string>& contradictions() const { return contradictions_; }

 private:
  class Reader;
  /// Notes two places that say one thing differently.
  void compare(const ConfigValue& said, const ConfigValue& known);
  Values known_, unknown_;
  std::vector<std::string> contradictions_;
};

/// A value of config.json in a message: "absent", or its text, shortened.
std::string config_text(const Json& value);

/// True if a value says no more than an absent one: null, false, 0, -1, an empty list or object.
bool says_nothing(const Json& value);

/// The words of a quantization_config or description file about a quantized cache of keys and
/// values (`kv_cache_scheme is {...}`); empty if there are none.
std::string cache_words(const Json& block);

}  // namespace ingot::formats
