#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

/// Rows [first, first + count).
inference::Matrix copy_rows(formats::MatrixView<const float> from, std::size_t first,
                            std::size_t count);

/// Where two sides of a comparison of logits come from: logits [count, vocab] of rows [first,
/// first + count).
using LogitsOf = std::function<inference::Matrix(std::size_t first, std::size_t count)>;

/// Compares the logits of the rows of `spans`, at most `head_rows` at a time.
std::vector<TokenDivergence> compare_heads(const LogitsOf& source, const LogitsOf& output,
                                           std::span<const PromptSpan> spans, std::size_t head_rows,
                                           std::size_t threads);

}  // namespace ingot::verify
