#include "verify/outputs/prompt_rows.h"

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
