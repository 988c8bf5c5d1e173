#pragma once

#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "convert/plan.h"
#include "convert/recipe.h"
#include "formats/checkpoint.h"

namespace ingot::convert {

/// What loader rules find wrong with a checkpoint, as (rule, tensor).
using KnownFindings = std::set<std::pair<std::string, std::string>>;

/// The findings of a source, by headers and JSON. To be taken before its files are consumed.
KnownFindings known_findings(const formats::Checkpoint& source, std::size_t threads);

/// Writes the output's headers, sparse files of their sizes and the JSON around them into an empty
/// folder: what loader rules need to judge it before any weight is converted. Of layout `ranks`,
/// the directories of typical_ranks().
void write_preview(const Plan& plan, const formats::Checkpoint& source,
                   const std::filesystem::path& folder);

/// Runs the loader rules over a staged output, headers and JSON only (the encoder has judged every
/// code and scale already); over typical_ranks() of one with ranks; not over layout deepseek-mp,
/// whose one loader matches names alone. What a rule of severity error finds, and the source did
/// not have itself, is thrown, collected; everything else is returned as warnings.
std::vector<std::string> require_loadable(const Plan& plan, const std::filesystem::path& staged,
                                          const formats::Checkpoint& source, const Recipe& recipe,
                                          const KnownFindings& known, std::size_t threads);

}  // namespace ingot::convert
