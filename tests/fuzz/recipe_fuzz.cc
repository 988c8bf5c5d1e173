#include <stdexcept>
#include <string_view>

#include "convert/recipe/recipe.h"
#include "formats/base/error.h"
#include "formats/json/json.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  convert::Recipe recipe;
  try {
    recipe = convert::parse_recipe(text, "input");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  // Goes into the manifest, where every string must be UTF-8.
  (void)formats::json_text(recipe.to_json());
  return true;
}

}  // namespace ingot::fuzz
