#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "verify/compare/comparison.h"
#include "verify/report/sections.h"

namespace ingot::verify {

/// Rows of the comparison, of which documents and tables are made.
formats::Json row_of(const PairedFigure& figure);
formats::Json row_of(const PairedGroup& group);

/// The warnings about all sides, each once.
std::vector<std::string> warnings_of(const Comparison& comparison);

/// "+1.25", or which side is exact where the difference is infinite.
std::string signed_decibels(double value);

/// Layers with the results of the levels that ran, of both: on a page all, with curves, else
/// `n_worst` that are farthest apart. The comparison has a reference.
Section paired_layers_section(const Comparison& comparison,
                              const std::vector<PairedTensor>& tensors, Form form,
                              std::size_t n_worst);
/// Shows in colours which side is closer, by layer and role.
Section difference_map_section(const std::vector<PairedTensor>& tensors);

}  // namespace ingot::verify
