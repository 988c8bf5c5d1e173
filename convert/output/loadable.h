#pragma once

#include <string>
#include <vector>

#include "convert/plan/plan.h"
#include "convert/recipe/recipe.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Runs the loader rules over the planned output, headers and JSON only (the encoder judges every
/// code and scale); over typical_ranks() of one with ranks; not over layout deepseek-mp, whose one
/// loader matches names alone. What a rule of severity error finds, and the source does not have
/// itself, is thrown, collected; everything else is returned as warnings. Reads no weights.
std::vector<std::string> require_loadable(const Plan& plan, std::size_t threads);

}  // namespace ingot::convert
