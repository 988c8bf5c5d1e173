#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "inference/generate/coordinator.h"
#include "inference/generate/sampling.h"
#include "inference/generate/scheduler.h"
#include "inference/model/model.h"

namespace ingot::inference {

/// Why an answer ended.
enum class StopReason : std::uint8_t {
  kEos,      ///< the model chose one of GenerateOptions::eos
  kLength,   ///< the answer has as many tokens as were asked for, or the context is full
  kStopped,  ///< the caller did not want more
};
std::string_view stop_reason_name(StopReason reason);

/// One answer. Seconds count from the start of the run, by the clock of the ranks that answered.
struct Answer {
  std::vector<std::int32_t> prompt;
  std::vector<std::int32_t> tokens;  ///< the id of the end included
  StopReason stop = StopReason::kLength;
  double first_token_seconds = 0, end_seconds = 0;
};

struct GenerateOptions {
  SamplingOptions sampling;
  std::size_t max_new_tokens = 512;
  std::vector<std::int32_t> eos;
  KvFormat kv_format = KvFormat::kBf16;
  std::vector<StaticScales> kv_scales = {};  ///< scales by layer, for kFp8Static
  /// Tokens that the MTP layer proposes for each step of a sequence (Drafter); 0: it is not used.
  std::size_t drafts = 0;
  /// Tokens that a group of ranks takes into a step at most.
  std::size_t batch_tokens = kPrefillRows;
  /// Tokens for which a group of ranks has room in its caches, in whole pages; 0: as many as all
  /// prompts and answers may have. At least as many as the longest.
  std::size_t cache_tokens = 0;
  /// Seconds from the start at which each prompt arrives, ascending; empty: all at once. The first
  /// rank's count.
  std::vector<double> arrivals;
  /// Called for every new token of a prompt, the end included.
  std::function<void(std::size_t prompt, std::int32_t token)> on_token;
  /// Called with every answer that has come to its end, as it does.
  std::function<void(std::size_t prompt, const Answer& answer)> on_answer;
  /// Called after every step, when the ranks have met again.
  std::function<void(const StepFigures& figures)> on_step;
  /// Asked before every step.
  std::function<bool()> stop_requested;
};

/// How long it took. The time of a step is shared out among its tokens. Tokens that are computed
/// again count as neither.
struct GenerateTimes {
  std::size_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  double first_token_seconds = 0;  ///< time from the start to the first token of any answer
};

/// The fate of the proposed tokens.
struct DraftCounts {
  std::uint64_t passes = 0;  ///< passes of a sequence through a step after its prompt
  std::uint64_t tokens = 0;  ///< tokens that these passes gave
  /// Counts by position: tokens that were proposed first, second, ..., and those of them that were
  /// accepted.
  std::vector<std::uint64_t> proposed, accepted;
};

/// All steps of a run: their number, and sums; of `imbalance` the mean, weighted by tokens.
struct StepTotals : StepFigures {
  /// Most sequences that were in the caches of all groups at once.
  std::uint64_t most_sequences = 0;
};

struct GenerateResult {
  std::vector<Answer> answers;
  GenerateTimes times;
  StepTotals steps;
  /// Near ties over all tokens, rejected proposals too; argmax: over tokens that were taken as the
  /// likeliest.
  NearTies near_ties;
  DraftCounts drafts;
};

/// Tokens that a batch may cache in the end, which the cache must hold. Throws kInvalidArgument for
/// an empty prompt or an id out of range, kLimit for a prompt that is longer than the model's
/// context; both name the prompt.
std::vector<std::size_t> final_lengths(const ModelSpec& spec,
                                       std::span<const std::vector<std::int32_t>> prompts,
                                       std::size_t max_new_tokens);

/// Answers any number of prompts by continuous batching (Scheduler). For a model in ranks every
/// rank calls it with the same prompts and options, and returns all answers: a prompt that arrives
/// goes to one of the data-parallel groups (Coordinator), which take their steps together. A rank's
/// callbacks are called for the prompts of its group as they are answered, and for the others at
/// the end; when one rank is to stop, all do.
GenerateResult generate(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                        const GenerateOptions& options);

}  // namespace ingot::inference
