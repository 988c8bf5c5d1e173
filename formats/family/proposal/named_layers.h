#pragma once

#include <cstddef>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"

// The numbers in the names of an unknown model that are those of its layers.

namespace ingot::formats {

/// The parts of a list between separators; `between` is not empty.
std::vector<std::string> split(std::string_view list, std::string_view between);

/// A name in its words, with the number that may be that of a layer.
struct NumberedWords {
  std::vector<std::string> words;
  std::size_t at = 0;  ///< place of the number, where is_numbered
  bool is_numbered = false, is_mtp = false;

  /// The text before the number.
  [[nodiscard]] std::string prefix() const;
};

/// Puts the mark of an expert in place of the first number that is one.
void mark_expert(std::vector<std::string>& words);

/// The places of the text model's layers among these names. Where encoders have layers of their own
/// too, the text model's are as many as the config says, and of several the ones with most tensors;
/// the modules that hold the others are towers.
class NamedLayers {
 public:
  /// `config` must outlive this.
  NamedLayers(const ModelConfig& config, std::span<const std::string_view> names);

  /// The words of a name; nullopt for names that no family can have, and for those of known towers.
  [[nodiscard]] std::optional<NumberedWords> words_of(std::string_view name) const;
  /// Prefix of the names of the text model's layers.
  [[nodiscard]] const std::string& main() const { return main_; }
  /// True if the name belongs to a module with layers of its own.
  [[nodiscard]] bool is_of_tower(const NumberedWords& name) const;

 private:
  const ModelConfig& config_;
  std::string main_;
  std::set<std::string> towers_;  // prefixes of their names
};

}  // namespace ingot::formats
