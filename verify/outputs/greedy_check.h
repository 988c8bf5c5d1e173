#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

struct GreedyOptions {
  std::size_t tokens = 20;
  double gap = 1.0;  ///< `greedy.gap`: a source's top-2 gap above which a difference is a fault
  inference::Profile source_profile = inference::Profile::kF32;
  inference::Profile output_profile = inference::Profile::kNative;
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};  ///< tokens done, in all
  std::function<bool()> stop_requested = {};
};

enum class GreedyOutcome : std::uint8_t {
  kEqual,
  kInconclusive,  ///< the source was nearly undecided where they part
  kDifferent,
};
std::string_view greedy_outcome_name(GreedyOutcome outcome);

/// What both made of one prompt.
struct GreedyPrompt {
  Prompt prompt;
  std::vector<std::int32_t> source, output;  ///< up to and with the end, or `tokens` of them
  std::string source_text, output_text;      ///< empty without a tokenizer
  GreedyOutcome outcome = GreedyOutcome::kEqual;
  std::optional<std::size_t> first_difference;  ///< index in the answers
  double gap = 0;    ///< the source's largest logit less its second, there
  double limit = 0;  ///< what the gap was compared with
};

/// Level `greedy`.
struct GreedyReport {
  std::vector<GreedyPrompt> prompts;
  std::size_t equal = 0, inconclusive = 0, different = 0;
};
/// Counts outcomes, and decodes the answers where there is a tokenizer.
void finish_greedy(GreedyReport& report, const inference::Tokenizer* tokenizer);

/// Both models answer every prompt with their likeliest tokens, side by side. Where the answers
/// part, at token n, the prompt is kDifferent if the source's gap there is above the smaller of
/// `gap` and twice the largest difference of logits at tokens before n at which both agreed, over
/// all prompts (`gap` alone when there is none); else kInconclusive.
GreedyReport compare_greedy(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            std::span<const Prompt> prompts, const inference::Tokenizer* tokenizer,
                            const GreedyOptions& options);

}  // namespace ingot::verify
