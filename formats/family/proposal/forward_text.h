#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/config/model_config.h"
#include "formats/family/family.h"

// The forward pass of a family in the words of a family's file that names no widths.

namespace ingot::formats {

/// The longest expression that is written.
inline constexpr std::size_t kMaxExpression = 200;

/// The text of an expression with the widths that its family has names for put in.
std::string spelled_out(std::string_view text, const NamedWidths* names);
/// The value of the key `layers` that means the layers of this row.
std::string layers_text(const TensorRule& rule);

/// Parts of a forward pass: a value for each key of `forward`, empty for keys that it lacks.
struct ForwardText {
  /// `mixer` or `blocks`, and what comes with them: `mtp`.
  std::string mixers;
  std::string mixture, mlp, model;
  std::vector<std::string> needs;  ///< entries of `needs`, of experts and others
  /// Entries of `only` that this config does not contradict.
  std::vector<std::pair<std::string, std::string>> only;
};
ForwardText forward_text(const Family& family, const ModelConfig& config);

/// The key `forward` with the mixers and MLPs of one family, the mixture of another, and the norms
/// and ends of a third. That there are experts is a need of the mixture.
std::string joined_text(const ForwardText& mixers, const ForwardText& mixture,
                        const ForwardText& model);

}  // namespace ingot::formats
