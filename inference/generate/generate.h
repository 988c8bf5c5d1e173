#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "inference/generate/sampling.h"
#include "inference/model/model.h"

namespace ingot::inference {

/// Why an answer ended.
enum class StopReason : std::uint8_t {
  kEos,      ///< the model said so
  kLength,   ///< as many tokens as were asked for, or the context is full
  kStopped,  ///< the caller did not want more
};
std::string_view stop_reason_name(StopReason reason);

/// One answer.
struct Answer {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> tokens;  ///< the id of the end included
  StopReason stop = StopReason::kLength;
};

struct GenerateOptions {
  SamplingOptions sampling;
  std::size_t max_new_tokens = 512;
  std::vector<std::int32_t> eos;
  KvFormat kv_format = KvFormat::kBf16;
  /// Tokens that the MTP layer proposes for each step of a sequence (Drafter); 0: it is not used.
  std::size_t drafts = 0;
  /// Called for every new token of a prompt, the end included.
  std::function<void(std::size_t prompt, std::int32_t token)> on_token;
  /// Called with every answer that has come to its end, as it does.
  std::function<void(std::size_t prompt, const Answer& answer)> on_answer;
  /// Asked before every step.
  std::function<bool()> stop_requested;
};

/// How long it took. Steps with tokens of a prompt count as prefill.
struct GenerateTimes {
  std::size_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  double first_token_seconds = 0;  ///< from the start to the first token of any answer
};

/// What became of the proposed tokens.
struct DraftCounts {
  std::uint64_t passes = 0;  ///< a sequence through a step after its prompt
  std::uint64_t tokens = 0;  ///< that those gave
  /// By position: of so many first, second, ... tokens proposed, so many held.
  std::vector<std::uint64_t> proposed, held;
};

struct GenerateResult {
  std::vector<Answer> answers;
  GenerateTimes times;
  /// Of all tokens, rejected proposals too; argmax: of those that were taken as the likeliest.
  NearTies near_ties;
  DraftCounts drafts;
};

/// A prompt is fed in runs that end at multiples of this many tokens, at most about as many rows in
/// a step, so that what a sequence computes does not depend on what else is in the batch.
inline constexpr std::size_t kPrefillRows = 512;

/// Tokens that a batch may cache in the end: what the cache must hold. kInvalidArgument for an
/// empty prompt or an id out of range, kLimit for a prompt that is longer than the model's context;
/// both name the prompt.
std::vector<std::size_t> final_lengths(const ModelSpec& spec,
                                       std::span<const std::vector<std::int32_t>> prompts,
                                       std::size_t max_new_tokens);

/// Answers all prompts as one batch of sequences of different lengths. For a model in ranks every
/// rank calls it with the same prompts and options, and returns all answers: the data-parallel
/// groups of a stage share out the prompts, prompt i to group i modulo their number, and take their
/// steps together. A rank's callbacks are called for the prompts of its group as they are answered,
/// and for the others at the end; when one rank is to stop, all do.
GenerateResult generate(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                        const GenerateOptions& options);

}  // namespace ingot::inference
