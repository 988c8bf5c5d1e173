#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engines/serving.h"
#include "engines/verdicts.h"
#include "formats/json/json_fwd.h"

namespace ingot::cli {

/// An output, as far as it is of use to say who loads it.
struct ServedOutput {
  std::span<const engines::EngineVerdict> engines;
  engines::Served checkpoint;
  const engines::EngineRow* wanted = nullptr;  ///< engine of --for, or null
  std::uint64_t n_unknown = 0;                 ///< tensors that no row of the family has
  std::string experts = {};  ///< text on how `wanted` loads experts of this form; may be empty
};

/// Lines of a report, a label and a text each: who loads the output, and for --for how it is served
/// and how its experts are loaded, if some engine is known to load it. Empty where engines were not
/// asked.
std::vector<std::pair<std::string, std::string>> engine_lines(const ServedOutput& output);
formats::Json engines_json(const ServedOutput& output);

}  // namespace ingot::cli
