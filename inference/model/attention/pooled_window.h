#pragma once

#include <span>

#include "formats/container/tensor.h"

namespace ingot::inference {

/// Tokens of a window, one row each: what they give, and the logits of how much of it.
struct WindowPart {
  formats::MatrixView<const float> values, logits;
};

/// Computes one vector for a window of tokens: out[c] = sum over rows of softmax over rows
/// (logits[., c]) x values[., c], a softmax of its own per column. Rows go in order through all
/// parts, whose widths are that of `out`; exponentials are taken of the difference to the column's
/// largest logit, and both sums are in order. Source: DeepSeek-V4's paper, 2.3 (equations 9 to 12
/// and 20 to 23).
void pool_window(std::span<const WindowPart> parts, std::span<float> out);

}  // namespace ingot::inference
