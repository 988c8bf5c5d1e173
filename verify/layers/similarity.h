#pragma once

#include <cstddef>
#include <span>

#include "formats/container/tensor.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

/// Compares the rows of `spans`: both matrices are [rows, D]. Cosines and sums in double over
/// ascending columns and rows, whatever the number of threads; a token of which both rows are zero
/// has cosine 1, of which one is, 0; the median of an even number is the mean of the middle two.
/// Where every prompt has one token, "without the first" is what "with" is. kNonFinite naming
/// prompt and token.
Similarity similarity(formats::MatrixView<const float> source,
                      formats::MatrixView<const float> output, std::span<const PromptSpan> spans,
                      std::size_t threads);

}  // namespace ingot::verify
