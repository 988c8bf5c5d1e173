#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/step/step.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

enum class GreedyOutcome : std::uint8_t {
  kEqual,
  kInconclusive,  ///< the source was nearly undecided at the first difference
  kDifferent,
};
std::string_view greedy_outcome_name(GreedyOutcome outcome);

/// The answers of both to one prompt.
struct GreedyPrompt {
  Prompt prompt;
  std::vector<std::int32_t> source, output;  ///< up to and with the end, or `tokens` of them
  std::string source_text, output_text;      ///< empty without a tokenizer
  GreedyOutcome outcome = GreedyOutcome::kEqual;
  std::optional<std::size_t> first_difference;  ///< index in the answers
  double gap = 0;    ///< the source's largest logit less its second, there
  double limit = 0;  ///< the limit of the gap
};

/// Level `greedy`.
struct GreedyReport {
  std::vector<GreedyPrompt> prompts;
  std::size_t equal = 0, inconclusive = 0, different = 0;
  /// Over all tokens of all prompts; 0 for answers of another program.
  inference::NearTies source_near_ties, output_near_ties;
};
/// Counts outcomes, and decodes the answers where there is a tokenizer.
void finish_greedy(GreedyReport& report, const inference::Tokenizer* tokenizer);

/// Both models answer every prompt with their likeliest tokens, side by side. Where the answers
/// part, at token n, the prompt is kDifferent if the source's gap there is above the smaller of
/// `gap` and twice the largest difference of logits at tokens before n at which both agreed, over
/// all prompts (only `gap` when there is none); else kInconclusive.
GreedyReport compare_greedy(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            std::span<const Prompt> prompts, const inference::Tokenizer* tokenizer,
                            const RunOptions& options);

/// Runs on the other ranks while the first one is in compare_greedy(): they answer the prompts with
/// it, each from its own directory. Only profile, tokens, threads, memory and ranks of the options
/// have an effect.
void follow_greedy(const formats::Checkpoint& rank, const RunOptions& options);

/// The answer of another program to a prompt.
struct RecordedAnswer {
  std::vector<std::int32_t> prompt, tokens;
  std::optional<inference::Matrix> first_logits;  ///< [1, V], that the first token is chosen from
};

/// The model answers every prompt with as many tokens as were recorded. The source's gap is that of
/// the recorded logits for the first token; where none are known, the model's own. Outcomes as in
/// compare_greedy, with the differences of logits that are known. `tokens`,
/// `source_profile` and `progress` of the options have no effect.
GreedyReport compare_recorded_answers(const formats::Checkpoint& model,
                                      std::span<const RecordedAnswer> recorded,
                                      const RunOptions& options);

}  // namespace ingot::verify
