#pragma once

#include <map>
#include <string>

#include "tests/convert/targets.h"
#include "tests/inference/weights/linears.h"

namespace ingot::testing {

/// The input scale of static variants.
inline constexpr float kInputScale = 0.0123F;

/// The example in another scheme and dialect, converted once per process.
inline const std::filesystem::path& variant(const Target& target) {
  static const TempDir directory;
  static std::map<std::string, std::filesystem::path> made;
  const auto [place, is_new] = made.try_emplace(target.name(), directory / target.name());
  if (is_new) {
    Conversion conversion(small_v32(), place->second);
    target.apply(conversion.recipe);
    if (conversion.recipe.choices.input_scale) conversion.recipe.choices.input_scale = kInputScale;
    conversion.recipe.choices.quantize_attention = true;
    conversion.recipe.choices.search = quantize::ScaleSearch::kAmax;
    conversion.run();
  }
  return place->second;
}

}  // namespace ingot::testing
