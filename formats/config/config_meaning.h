#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// One thing that config.json says.
struct SaidValue {
  JsonValue value;   ///< as every spelling of it is read: one end-of-text id is no list, ...
  std::string path;  ///< where it stands: `rope_scaling.factor`
};

/// What config.json says of the model, whatever its keys are called: old spellings, those of
/// transformers 5 and what it derives and writes (head_dim, layer_types, mlp_layer_types, ...) are
/// read as meanings, each with one value. The meaning of a key in `text_config`, or what
/// else holds the text model's, begins with that word. Left out are the quantization, the dtype,
/// the number of MTP layers, who saved the file, and what concerns training alone.
class ConfigMeaning {
 public:
  using Values = std::map<std::string, SaidValue, std::less<>>;

  explicit ConfigMeaning(const Json& config);

  /// Said or derived, by meaning (`rope.factor`, `hidden_size`). What equals the value that its
  /// absence has for every reader is left out.
  [[nodiscard]] const Values& known() const { return known_; }
  /// Keys that no row of the table knows.
  [[nodiscard]] const Values& unknown() const { return unknown_; }
  /// Where two spellings of one meaning differ, or a derived key from what it is derived from: a
  /// sentence each.
  [[nodiscard]] const std::vector<std::string>& contradictions() const { return contradictions_; }

 private:
  class Reader;
  Values known_, unknown_;
  std::vector<std::string> contradictions_;
};

/// A value of config.json in a message: "absent", or its text, shortened.
std::string config_text(const Json& value);

/// Whether a value says no more than an absent one: null, false, 0, -1, an empty list or object.
bool says_nothing(const Json& value);

/// What a quantization_config or description file says of a quantized cache of keys and values
/// (`kv_cache_scheme is {...}`); empty when nothing.
std::string cache_words(const Json& block);

}  // namespace ingot::formats
