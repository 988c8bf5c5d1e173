#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/model/step/step.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// The tokens of one prompt among the rows of a pass over several.
struct PromptSpan {
  std::size_t prompt = 0;             ///< index of the prompt among those that were given
  std::size_t first = 0;              ///< row of its first token
  std::span<const std::int32_t> ids;  ///< token ids of its rows
  [[nodiscard]] std::size_t end() const { return first + ids.size(); }
};

/// Returns spans of prompts, one after the other. Throws kInvalidArgument for none, an empty one,
/// or an id outside of the vocabulary; kLimit for one that is longer than the model's context.
std::vector<PromptSpan> spans_of(std::span<const Prompt> prompts, const inference::ModelSpec& spec);
/// Returns spans without every prompt's first token, as the MTP layer takes tokens: entry i goes
/// with the hidden state i of its prompt. Prompts of one token have no span.
std::vector<PromptSpan> next_token_spans(std::span<const PromptSpan> spans);

/// The rows for the entries of next_token_spans(): rows of `states`, which are those of `spans`.
inference::Matrix states_before(formats::MatrixView<const float> states,
                                std::span<const PromptSpan> spans,
                                std::span<const PromptSpan> next);
/// One of two sets of rows, one after the other: the isolated ones (0), which are given the other
/// model's states, or the accumulated ones (1), which continue their own.
formats::MatrixView<const float> half_of(const inference::Matrix& both, std::size_t half);
/// Rows [first, first + count).
inference::Matrix copy_rows(formats::MatrixView<const float> from, std::size_t first,
                            std::size_t count);

std::size_t row_count(std::span<const PromptSpan> spans);
std::vector<std::size_t> lengths_of(std::span<const PromptSpan> spans);
/// Rows of whole sequences, all spans `copies` times, each time as sequences of their own.
std::vector<inference::Row> rows_of(std::span<const PromptSpan> spans, std::size_t copies);

}  // namespace ingot::verify
