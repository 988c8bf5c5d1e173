#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "convert/recipe/recipe.h"
#include "library/options/flag_table.h"

namespace ingot {

/// The flags that decide how a conversion treats each tensor, as given.
struct TargetFlags {
  std::string to, recipe_file, mtp, activation_scales, importance, scales_from;
  std::map<std::string_view, std::string> choices;  ///< of convert::choice_options(), by name
  std::vector<std::string> rules, allow;
  bool quantize_attention = false;
};

/// --to, --for, --dialect: the flags of most conversions.
std::vector<Flag> scheme_flags(TargetFlags& flags);
/// The others, without --allow.
std::vector<Flag> choice_flags(TargetFlags& flags);
Flag allow_flag(TargetFlags& flags);

/// The recipe of the flags, those of the command line before the recipe's; reads the files that
/// they name, but for --scales-from. Throws kInvalidArgument for words that are not understood.
convert::Recipe make_recipe(const TargetFlags& flags);
/// Opens the release whose scales are taken over, where one was given.
void open_scales_from(const TargetFlags& flags, const std::string& family, std::size_t threads,
                      convert::Choices& choices);

}  // namespace ingot
