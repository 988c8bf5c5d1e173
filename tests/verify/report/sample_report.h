#pragma once

#include <cstddef>

#include "verify/compare/comparison.h"
#include "verify/gates/report.h"

namespace ingot::testing {

/// A report of all levels, as of a conversion to NVFP4 experts of a model of this many layers (the
/// last is MTP) that went well. Judged by the default gates.
verify::Report passing_report(std::size_t n_layers = 6);

/// The same with faults in every level, in its middle layer: a changed norm, misrounded experts, a
/// missing tensor, hidden states beyond the gate, an answer of the other model. Not one of its
/// texts is safe to paste into HTML.
verify::Report failing_report(std::size_t n_layers = 62);

/// That as A, and a report without faults as B: each is closer in the experts of one role.
verify::Comparison sample_comparison(std::size_t n_layers = 62);

}  // namespace ingot::testing
