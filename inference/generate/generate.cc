#include "inference/generate/generate.h"

#include <algorithm>
#include <array>
#include <chrono>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"

namespace ingot::inference {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence on its way.
struct Sequence {
  SequenceId id = 0;
  std::uint64_t prompt_hash = 0;
  std::size_t fed = 0;   ///< tokens in the cache
  std::size_t most = 0;  ///< tokens that it may have in the end
  std::size_t rows = 0;  ///< of the current step
  bool done = false;
};

class Batch {
 public:
  Batch(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
        const GenerateOptions& options)
      : model_(model),
        options_(options),
        cache_(model.make_cache(options.kv_format, pages_of(model, prompts, options))) {
    const std::vector<std::size_t> most =
        final_lengths(model.spec(), prompts, options.max_new_tokens);
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      sequences_.push_back({.id = cache_.add(),
                            .prompt_hash = hash_of_prompt(prompts[i]),
                            .most = most[i],
                            .done = most[i] <= prompts[i].size()});
      result_.answers.push_back({.prompt = prompts[i], .tokens = {}});
    }
  }

  GenerateResult run() {
    start_ = Clock::now();
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].done) tell(i);
    }
    while (choose_rows()) {
      if (options_.stop_requested && options_.stop_requested()) {
        stop_all();
        break;
      }
      step();
    }
    return std::move(result_);
  }

 private:
  static std::size_t pages_of(const Model& model,
                              std::span<const std::vector<std::int32_t>> prompts,
                              const GenerateOptions& options) {
    std::size_t n_tokens = 0;
    for (const std::size_t length : final_lengths(model.spec(), prompts, options.max_new_tokens)) {
      n_tokens += round_up(length, KvCache::kPageTokens);
    }
    return n_tokens;
  }

  [[nodiscard]] std::int32_t token_at(std::size_t i, std::size_t position) const {
    const Answer& answer = result_.answers[i];
    return position < answer.prompt.size() ? answer.prompt[position]
                                           : answer.tokens[position - answer.prompt.size()];
  }

  // How many rows every sequence gives to the next step. False when all are done.
  bool choose_rows() {
    std::size_t n_rows = 0, n_prompt_rows = 0;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      sequence.rows = 0;
      if (sequence.done) continue;
      const std::size_t prompt = result_.answers[i].prompt.size();
      if (sequence.fed >= prompt) {
        sequence.rows = 1;
      } else {
        const std::size_t end = (sequence.fed / kPrefillRows + 1) * kPrefillRows;
        const std::size_t run = std::min(end, prompt) - sequence.fed;
        if (n_prompt_rows > 0 && n_prompt_rows + run > kPrefillRows) continue;
        sequence.rows = run;
        n_prompt_rows += run;
      }
      n_rows += sequence.rows;
    }
    return n_rows > 0;
  }

  void step() {
    const Clock::time_point start = Clock::now();
    std::size_t n_prompt_rows = 0;
    std::vector<Row> rows;
    std::vector<std::size_t> answered;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      Sequence& sequence = sequences_[i];
      for (std::size_t r = 0; r < sequence.rows; ++r) {
        rows.push_back({.sequence = sequence.id,
                        .position = static_cast<std::uint32_t>(sequence.fed + r),
                        .token = token_at(i, sequence.fed + r)});
      }
      if (sequence.rows == 0) continue;
      if (sequence.fed < result_.answers[i].prompt.size()) n_prompt_rows += sequence.rows;
      sequence.fed += sequence.rows;
      if (sequence.fed >= result_.answers[i].prompt.size()) {
        rows.back().logits = true;
        answered.push_back(i);
      }
    }
    const Matrix logits = model_.step(rows, cache_);
    for (std::size_t at = 0; at < answered.size(); ++at) take_token(answered[at], logits.row(at));

    GenerateTimes& times = result_.times;
    times.prefill_tokens += n_prompt_rows;
    times.decode_tokens += rows.size() - n_prompt_rows;
    (n_prompt_rows > 0 ? times.prefill_seconds : times.decode_seconds) += seconds_since(start);
    if (!answered.empty() && times.first_token_seconds == 0) {
      times.first_token_seconds = seconds_since(start_);
    }
  }

  void take_token(std::size_t i, std::span<const float> logits) {
    Sequence& sequence = sequences_[i];
    Answer& answer = result_.answers[i];
    const std::int32_t token = sample_token(
        logits, options_.sampling, {.prompt = sequence.prompt_hash, .position = sequence.fed});
    answer.tokens.push_back(token);
    if (options_.on_token) options_.on_token(i, token);
    const bool is_end = std::ranges::find(options_.eos, token) != options_.eos.end();
    sequence.done = is_end || answer.prompt.size() + answer.tokens.size() >= sequence.most;
    if (is_end) answer.stop = StopReason::kEos;
    if (!sequence.done) return;
    cache_.free(sequence.id);
    tell(i);
  }

  void tell(std::size_t i) const {
    if (options_.on_answer) options_.on_answer(i, result_.answers[i]);
  }

  void stop_all() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (sequences_[i].done) continue;
      result_.answers[i].stop = StopReason::kStopped;
      tell(i);
    }
  }

  const Model& model_;
  const GenerateOptions& options_;
  ModelCache cache_;
  std::vector<Sequence> sequences_;
  GenerateResult result_;
  Clock::time_point start_;
};

}  // namespace

std::string_view stop_reason_name(StopReason reason) {
  // In the order of StopReason.
  static constexpr std::array<std::string_view, 3> kNames = {"eos", "length", "stopped"};
  return kNames.at(static_cast<std::size_t>(reason));
}

std::vector<std::size_t> final_lengths(const ModelSpec& spec,
                                       std::span<const std::vector<std::int32_t>> prompts,
                                       std::size_t max_new_tokens) {
  std::vector<std::size_t> lengths;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<std::int32_t>& prompt = prompts[i];
    if (prompt.empty()) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("prompt {} is empty", i));
    }
    for (const std::int32_t id : prompt) {
      if (id < 0 || static_cast<std::size_t>(id) >= spec.vocab) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("prompt {}: token id {} is not within the vocabulary of {}", i, id,
                                spec.vocab));
      }
    }
    const std::size_t context = spec.max_positions == 0 ? SIZE_MAX : spec.max_positions;
    if (prompt.size() > context) {
      throw Error(ErrorCode::kLimit,
                  fmt::format("prompt {} has {} tokens, more than the model's context of {}", i,
                              prompt.size(), context));
    }
    lengths.push_back(prompt.size() + std::min(max_new_tokens, context - prompt.size()));
  }
  return lengths;
}

GenerateResult generate(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
                        const GenerateOptions& options) {
  return Batch(model, prompts, options).run();
}

}  // namespace ingot::inference
