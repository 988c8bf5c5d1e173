#include "verify/outputs/prompt_rows.h"

#include <algorithm>

#include "formats/base/error.h"
#include "inference/generate/generate.h"

namespace ingot::verify {

using inference::Row;
using inference::SequenceId;

std::vector<PromptSpan> spans_of(std::span<const Prompt> prompts,
                                 const inference::ModelSpec& spec) {
  if (prompts.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no prompt");
  std::vector<std::vector<std::int32_t>> ids;
  ids.reserve(prompts.size());
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  inference::final_lengths(spec, ids, 0);
  std::vector<PromptSpan> spans;
  std::size_t first = 0;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    spans.push_back({.prompt = p, .first = first, .ids = prompts[p].ids});
    first = spans.back().end();
  }
  return spans;
}

std::vector<PromptSpan> next_token_spans(std::span<const PromptSpan> spans) {
  std::vector<PromptSpan> next;
  std::size_t first = 0;
  for (const PromptSpan& span : spans) {
    if (span.ids.size() < 2) continue;
    next.push_back({.prompt = span.prompt, .first = first, .ids = span.ids.subspan(1)});
    first = next.back().end();
  }
  return next;
}

inference::Matrix states_before(formats::MatrixView<const float> states,
                                std::span<const PromptSpan> spans,
                                std::span<const PromptSpan> next) {
  inference::Matrix taken(row_count(next), states.cols);
  for (const PromptSpan& span : next) {
    const std::size_t from = spans[span.prompt].first;
    for (std::size_t i = 0; i < span.ids.size(); ++i)
      std::copy_n(states.row(from + i), states.cols, taken.row(span.first + i).begin());
  }
  return taken;
}

formats::MatrixView<const float> half_of(const inference::Matrix& both, std::size_t half) {
  return {both.values().data() + half * both.values().size() / 2, both.rows() / 2, both.cols(),
          both.cols()};
}

inference::Matrix copy_rows(formats::MatrixView<const float> from, std::size_t first,
                            std::size_t count) {
  inference::Matrix rows(count, from.cols);
  for (std::size_t r = 0; r < count; ++r)
    std::copy_n(from.row(first + r), from.cols, rows.row(r).begin());
  return rows;
}

std::size_t row_count(std::span<const PromptSpan> spans) {
  return spans.empty() ? 0 : spans.back().end();
}

std::vector<std::size_t> lengths_of(std::span<const PromptSpan> spans) {
  std::vector<std::size_t> lengths;
  for (const PromptSpan& span : spans) lengths.push_back(span.ids.size());
  return lengths;
}

std::vector<Row> rows_of(std::span<const PromptSpan> spans, std::size_t copies) {
  std::vector<Row> rows;
  rows.reserve(copies * row_count(spans));
  SequenceId sequence = 0;
  for (std::size_t copy = 0; copy < copies; ++copy) {
    for (const PromptSpan& span : spans) {
      for (std::size_t i = 0; i < span.ids.size(); ++i) {
        rows.push_back({.sequence = sequence,
                        .position = static_cast<std::uint32_t>(i),
                        .token = span.ids[i]});
      }
      ++sequence;
    }
  }
  return rows;
}

}  // namespace ingot::verify
