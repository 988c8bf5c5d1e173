#pragma once

#include <map>
#include <string>
#include <vector>

#include "convert/recipe/recipe.h"

namespace ingot::convert {

/// The plain tensors of more bits than a recipe's rules ask for, which these narrow or spare.
class Narrowing {
 public:
  /// `decision`: the recipe's, about the tensor.
  void note(const formats::LogicalTensor& tensor, const Decision& decision);

  /// A sentence for each rule that narrows or spares some, in the order of the rules.
  [[nodiscard]] std::vector<std::string> sentences(const Recipe& recipe) const;

 private:
  std::map<const Rule*, std::vector<std::string>> spared_, narrowed_;  // names of tensors
};

}  // namespace ingot::convert
