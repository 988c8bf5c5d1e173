#include "verify/outputs/greedy_check.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "verify/outputs/batch_decoder.h"
#include "verify/outputs/divergence.h"

namespace ingot::verify {

using formats::Checkpoint;
using inference::Matrix;
using inference::RunMemory;

namespace {

using Ids = std::vector<std::int32_t>;

struct Share {
  std::uint64_t source = 0, output = 0;  // bytes for weights
};

// What both need at least, and of the rest as many experts as there is room for, in proportion.
Share share_memory(const RunMemory& source, const RunMemory& output, std::uint64_t limit) {
  const std::uint64_t least = source.least() + output.least();
  if (limit < least) {
    throw Error(ErrorCode::kLimit,
                fmt::format("both models are open at once: caches, steps, resident weights and two "
                            "experts take {} MB of the source and {} MB of the output, and the "
                            "limit is {} MB; --mem-limit {}MB would be enough",
                            source.least() / 1'000'000, output.least() / 1'000'000,
                            limit / 1'000'000, (least + 999'999) / 1'000'000));
  }
  const std::uint64_t more_source = source.all() - source.least();
  const std::uint64_t more_output = output.all() - output.least();
  const std::uint64_t spare = std::min(limit - least, more_source + more_output);
  const double part =
      more_source + more_output == 0
          ? 0.0
          : static_cast<double>(more_source) / static_cast<double>(more_source + more_output);
  const std::uint64_t to_source =
      std::min(static_cast<std::uint64_t>(static_cast<double>(spare) * part), more_source);
  const std::uint64_t to_output = std::min(spare - to_source, more_output);
  return {source.resident + source.two_experts + to_source,
          output.resident + output.two_experts + to_output};
}

// One of the two models with its answers so far.
class Lane {
 public:
  Lane(BatchDecoder& decoder, std::span<const Ids> prompts, std::span<const std::size_t> most,
       std::span<const std::int32_t> eos)
      : decoder_(decoder), eos_(eos), answers_(prompts.size()), row_of_(prompts.size()) {
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      left_.push_back(most[p] - prompts[p].size());
    }
  }

  [[nodiscard]] bool is_done(std::size_t prompt) const { return left_[prompt] == 0; }
  [[nodiscard]] const Ids& answer(std::size_t prompt) const { return answers_[prompt]; }
  [[nodiscard]] std::span<const float> logits(std::size_t prompt) const {
    return logits_.row(row_of_[prompt]);
  }

  // Logits for the next token of every prompt that is not done.
  void advance(bool first) {
    std::vector<BatchDecoder::Continuation> continuations;
    for (std::size_t p = 0; p < answers_.size(); ++p) {
      row_of_[p] = first ? p : continuations.size();
      if (!first && !is_done(p)) {
        continuations.push_back({.prompt = p, .token = answers_[p].back()});
      }
    }
    if (first) {
      logits_ = decoder_.begin();
    } else if (!continuations.empty()) {
      logits_ = decoder_.step(continuations);
    }
  }

  // The likeliest token of a prompt that is not done.
  std::int32_t take(std::size_t prompt) {
    const std::int32_t token = inference::greedy_token(logits(prompt));
    answers_[prompt].push_back(token);
    const bool is_end = std::ranges::find(eos_, token) != eos_.end();
    left_[prompt] = is_end ? 0 : left_[prompt] - 1;
    return token;
  }

 private:
  BatchDecoder& decoder_;
  std::span<const std::int32_t> eos_;
  std::vector<Ids> answers_;
  std::vector<std::size_t> row_of_, left_;
  Matrix logits_;
};

class Lockstep {
 public:
  Lockstep(Lane source, Lane output, std::span<const Prompt> prompts, const GreedyOptions& options)
      : source_(std::move(source)), output_(std::move(output)), options_(options) {
    for (const Prompt& prompt : prompts) report_.prompts.push_back({.prompt = prompt});
  }

  GreedyReport run() {
    for (std::size_t n = 0; n < options_.tokens; ++n) {
      if (options_.stop_requested && options_.stop_requested()) {
        throw Error(ErrorCode::kInterrupted, "stopped while both models were generating");
      }
      if (all_done()) break;
      source_.advance(n == 0);
      output_.advance(n == 0);
      step(n);
      if (options_.progress) options_.progress(n + 1, options_.tokens);
    }
    for (std::size_t p = 0; p < report_.prompts.size(); ++p) {
      report_.prompts[p].source = source_.answer(p);
      report_.prompts[p].output = output_.answer(p);
    }
    return std::move(report_);
  }

 private:
  [[nodiscard]] bool all_done() const {
    for (std::size_t p = 0; p < report_.prompts.size(); ++p) {
      if (!source_.is_done(p) || !output_.is_done(p)) return false;
    }
    return true;
  }

  void step(std::size_t n) {
    double largest = 0;
    bool any_agreed = false;
    for (std::size_t p = 0; p < report_.prompts.size(); ++p) {
      const bool agreed = !report_.prompts[p].first_difference;
      const bool source_goes_on = !source_.is_done(p), output_goes_on = !output_.is_done(p);
      if (agreed && source_goes_on) {
        const double difference = largest_difference(source_.logits(p), output_.logits(p));
        if (source_.take(p) == output_.take(p)) {
          largest = std::max(largest, difference);
          any_agreed = true;
        } else {
          part(report_.prompts[p], n, top_gap(source_.logits(p)));
        }
        continue;
      }
      if (source_goes_on) source_.take(p);
      if (output_goes_on) output_.take(p);
    }
    // Seen by later tokens only, of whichever prompt.
    if (any_agreed) largest_before_ = std::max(largest_before_.value_or(0.0), largest);
  }

  void part(GreedyPrompt& prompt, std::size_t n, double gap) const {
    prompt.first_difference = n;
    prompt.gap = gap;
    prompt.limit = largest_before_ ? std::min(options_.gap, 2 * *largest_before_) : options_.gap;
    prompt.outcome = gap > prompt.limit ? GreedyOutcome::kDifferent : GreedyOutcome::kInconclusive;
  }

  Lane source_, output_;
  const GreedyOptions& options_;
  GreedyReport report_;
  std::optional<double> largest_before_;
};

}  // namespace

std::string_view greedy_outcome_name(GreedyOutcome outcome) {
  switch (outcome) {
    case GreedyOutcome::kEqual:
      return "equal";
    case GreedyOutcome::kInconclusive:
      return "inconclusive";
    case GreedyOutcome::kDifferent:
      return "different";
  }
  return "";
}

void finish_greedy(GreedyReport& report, const inference::Tokenizer* tokenizer) {
  report.equal = report.inconclusive = report.different = 0;
  for (GreedyPrompt& prompt : report.prompts) {
    if (prompt.outcome == GreedyOutcome::kEqual) ++report.equal;
    if (prompt.outcome == GreedyOutcome::kInconclusive) ++report.inconclusive;
    if (prompt.outcome == GreedyOutcome::kDifferent) ++report.different;
    if (tokenizer == nullptr) continue;
    prompt.source_text = tokenizer->decode(prompt.source, /*skip_special=*/true);
    prompt.output_text = tokenizer->decode(prompt.output, /*skip_special=*/true);
  }
}

GreedyReport compare_greedy(const Checkpoint& source, const Checkpoint& output,
                            std::span<const Prompt> prompts, const inference::Tokenizer* tokenizer,
                            const GreedyOptions& options) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  const inference::ModelSpec other = inference::model_spec(output.family(), output.config());
  if (spec.vocab != other.vocab) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("the source has a vocabulary of {}, the output of {}", spec.vocab,
                            other.vocab));
  }
  if (prompts.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no prompt");
  std::vector<Ids> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  const std::vector<std::size_t> most = inference::final_lengths(spec, ids, options.tokens);
  const std::vector<std::int32_t> eos =
      inference::read_generation_config(source.directory(), source.config()).eos;

  const auto need = [&](const Checkpoint& model, inference::Profile profile) {
    return inference::run_memory(model, profile, cache_format(profile), most, options.threads);
  };
  const Share share = share_memory(need(source, options.source_profile),
                                   need(output, options.output_profile), options.mem_limit);
  const auto model_options = [&](inference::Profile profile, std::uint64_t weights) {
    return inference::ModelOptions{.profile = profile,
                                   .threads = options.threads,
                                   .weight_limit = weights,
                                   .without_mtp = true};
  };
  BatchDecoder source_side(source, model_options(options.source_profile, share.source), ids, most);
  BatchDecoder output_side(output, model_options(options.output_profile, share.output), ids, most);
  GreedyReport report = Lockstep(Lane(source_side, ids, most, eos),
                                 Lane(output_side, ids, most, eos), prompts, options)
                            .run();
  finish_greedy(report, tokenizer);
  return report;
}

}  // namespace ingot::verify
