#pragma once

#include <span>
#include <vector>

#include "check/rules/loader_rules.h"
#include "engines/verdicts.h"

namespace ingot::check {

/// The findings that are of structure, or of rows that name the engine or all. A row about what
/// this engine refuses makes errors; one about an option of it warns.
std::vector<Finding> findings_for(engines::Engine engine, std::span<const Finding> findings);

/// One voice: an engine about which the findings have an error does not load the checkpoint,
/// whatever its verdict was.
void deny_by_errors(std::span<const Finding> findings,
                    std::vector<engines::EngineVerdict>& verdicts);

}  // namespace ingot::check
