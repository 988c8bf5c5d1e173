#include <stdexcept>
#include <string_view>

#include "convert/recipe/composition.h"
#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  const auto is_taken = [&](convert::Composition* composition) {
    convert::Recipe recipe;
    try {
      recipe = convert::parse_recipe(text, "input", composition);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
      return false;
    }
    // Goes into the manifest, where every string must be UTF-8.
    (void)formats::json_text(recipe.to_json());
    return true;
  };
  // No recipe is both: one of several sources names a base.
  convert::Composition composition;
  const bool is_of_one = is_taken(nullptr), is_of_several = is_taken(&composition);
  if (is_of_one && is_of_several) throw std::logic_error("a recipe of one source and of several");
  return is_of_one || is_of_several;
}

}  // namespace ingot::fuzz
