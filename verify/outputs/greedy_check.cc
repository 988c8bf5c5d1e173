#include "verify/outputs/greedy_check.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <ranges>
#include <string_view>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "inference/generate/scheduler.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "verify/outputs/divergence.h"

namespace ingot::verify {

using formats::Checkpoint;
using inference::KvCache;
using inference::Matrix;
using inference::Row;
using inference::RunMemory;

namespace {

using Ids = std::vector<std::int32_t>;

std::size_t in_pages(std::span<const std::size_t> lengths) {
  std::size_t n_tokens = 0;
  for (const std::size_t length : lengths) {
    n_tokens += round_up(length, KvCache::kPageTokens);
  }
  return n_tokens;
}

std::vector<std::size_t> lengths_left(std::span<const Ids> prompts,
                                      std::span<const std::size_t> most) {
  std::vector<std::size_t> left;
  for (std::size_t p = 0; p < prompts.size(); ++p) left.push_back(most[p] - prompts[p].size());
  return left;
}

// A model that answers prompts side by side with its likeliest tokens. Its caches have room for all
// of them.
class AnsweringModel {
 public:
  // `ranks`: over which a rank's directory runs; null: `source` is whole. `most[i]` tokens are the
  // most that prompt i and its answer have together; an answer ends with one of `eos`. All must
  // outlive this. Throws as Model does.
  AnsweringModel(const Checkpoint& source, const inference::ModelOptions& options,
                 std::span<const Ids> prompts, std::span<const std::size_t> most,
                 std::span<const std::int32_t> eos, inference::Comm* ranks)
      : model_(source, inference::rank_view(source), ranks != nullptr ? *ranks : alone_, options),
        prompts_(prompts),
        cache_(model_.make_cache(inference::plain_kv_format(options.profile), in_pages(most))),
        scheduler_({.cache_pages = in_pages(most) / KvCache::kPageTokens}),
        eos_(eos),
        answers_(prompts.size()),
        left_(lengths_left(prompts, most)),
        logits_(prompts.size(), model_.spec().vocab) {
    for (std::size_t p = 0; p < prompts.size(); ++p) {
      sequences_.push_back(cache_.add());
      if (left_[p] > 0) scheduler_.add(p, prompts[p].size(), most[p]);
    }
  }

  [[nodiscard]] bool is_done(std::size_t prompt) const { return left_[prompt] == 0; }
  [[nodiscard]] const Ids& answer(std::size_t prompt) const { return answers_[prompt]; }
  [[nodiscard]] std::span<const float> logits(std::size_t prompt) const {
    return logits_.row(prompt);
  }

  // Logits for the next token of every prompt that is not done.
  void advance(bool /*first*/) {
    while (true) {
      const auto shares = scheduler_.next().shares;
      if (shares.empty()) return;
      std::vector<Row> rows;
      for (const auto& share : shares) add_rows(share, rows);
      const Matrix logits = model_.step(rows, cache_, {.near_ties = &near_ties_});
      std::size_t at = 0;
      for (const auto& share : shares) {
        const std::size_t end = share.first + share.count, known = n_known(share.id);
        if (end == known) std::ranges::copy(logits.row(at++), logits_.row(share.id).begin());
        scheduler_.advance(share.id, end, known);
      }
    }
  }

  // The likeliest token of a prompt that is not done.
  std::int32_t take(std::size_t prompt) {
    const std::int32_t token = inference::greedy_token(logits(prompt));
    const std::size_t cached = n_known(prompt);
    answers_[prompt].push_back(token);
    const auto taken = static_cast<std::uint32_t>(token);
    if (inference::is_near_tie(logits(prompt), {&taken, 1})) ++near_ties_.argmax;
    const bool is_end = std::ranges::find(eos_, token) != eos_.end();
    left_[prompt] = is_end ? 0 : left_[prompt] - 1;
    if (is_done(prompt)) {
      scheduler_.finish(prompt);
    } else {
      scheduler_.advance(prompt, cached, cached + 1);
    }
    return token;
  }

  // Counts of all stages. Every rank calls it, after its last answer.
  [[nodiscard]] inference::NearTies near_ties() const {
    const inference::RankView& rank = model_.rank();
    // All data-parallel groups answer the same prompts, and a tensor group makes one choice.
    const bool speaks = rank.rank % rank.topology.ranks_per_stage() == 0;
    std::array<std::uint64_t, 2> counted = {};
    if (speaks) counted = {near_ties_.router, near_ties_.indexer};
    const auto bytes = std::as_bytes(std::span(counted));
    inference::Comm& comm = model_.comm();
    inference::NearTies all = {.argmax = near_ties_.argmax};
    for (const inference::Bytes& of_rank :
         exchange(comm, {.group = inference::Group::kWorld, .name = "choices near a tie"},
                  std::vector(comm.size(inference::Group::kWorld),
                              inference::Bytes(bytes.begin(), bytes.end())))) {
      INGOT_CHECK(of_rank.size() == sizeof counted);
      std::memcpy(counted.data(), of_rank.data(), sizeof counted);
      all.router += counted[0];
      all.indexer += counted[1];
    }
    return all;
  }

 private:
  [[nodiscard]] std::size_t n_known(std::size_t prompt) const {
    return prompts_[prompt].size() + answers_[prompt].size();
  }

  void add_rows(const inference::Scheduler::Share& share, std::vector<Row>& rows) const {
    const Ids& prompt = prompts_[share.id];
    for (std::size_t i = share.first; i < share.first + share.count; ++i) {
      const bool is_answer = i >= prompt.size();
      rows.push_back({.sequence = sequences_[share.id],
                      .position = static_cast<std::uint32_t>(i),
                      .token = is_answer ? answers_[share.id][i - prompt.size()] : prompt[i],
                      .logits = i + 1 == n_known(share.id),
                      .is_answer = is_answer});
    }
  }

  inference::OneRank alone_;
  inference::Model model_;
  std::span<const Ids> prompts_;
  inference::ModelCache cache_;
  inference::Scheduler scheduler_;
  std::span<const std::int32_t> eos_;
  std::vector<inference::SequenceId> sequences_;
  std::vector<Ids> answers_;
  std::vector<std::size_t> left_;
  Matrix logits_;  // of the next token of each
  inference::NearTies near_ties_;
};

// The answers of another program, in the place of a model. Logits of only the first token may be
// known.
class RecordedAnswers {
 public:
  RecordedAnswers(std::span<const RecordedAnswer> recorded, std::span<const Ids> prompts,
                  std::span<const std::size_t> most)
      : recorded_(recorded), n_taken_(recorded.size()), left_(lengths_left(prompts, most)) {}

  [[nodiscard]] bool is_done(std::size_t prompt) const { return left_[prompt] == n_taken_[prompt]; }
  [[nodiscard]] const Ids& answer(std::size_t prompt) const { return recorded_[prompt].tokens; }
  [[nodiscard]] std::span<const float> logits(std::size_t prompt) const {
    const auto& first = recorded_[prompt].first_logits;
    return is_first_ && first ? first->row(0) : std::span<const float>();
  }
  void advance(bool first) { is_first_ = first; }
  std::int32_t take(std::size_t prompt) { return recorded_[prompt].tokens[n_taken_[prompt]++]; }
  static inference::NearTies near_ties() { return {}; }  // unknown

 private:
  std::span<const RecordedAnswer> recorded_;
  bool is_first_ = true;
  std::vector<std::size_t> n_taken_, left_;
};

constexpr inference::Collective kQuestions = {.group = inference::Group::kWorld,
                                              .name = "questions"};

// To the other ranks: the prompts, then `most` and `eos` of AnsweringModel.
void tell_questions(inference::Comm& comm, std::vector<Ids> lists,
                    std::span<const std::size_t> most, std::span<const std::int32_t> eos) {
  lists.emplace_back(most.begin(), most.end());
  lists.emplace_back(eos.begin(), eos.end());
  broadcast(comm, kQuestions, 0, lists);
}

struct Share {
  std::uint64_t source = 0, output = 0;  // bytes for weights
};

// The least that both need, and as many of the other experts as there is room for, in proportion.
Share share_memory(const RunMemory& source, const RunMemory& output, std::uint64_t limit) {
  const std::uint64_t least = source.least() + output.least();
  if (limit < least) {
    throw Error(ErrorCode::kLimit,
                "both models are open at once: caches, steps, resident weights and two experts "
                "take {} MB of the source and {} MB of the output, and the limit is {} MB; "
                "--mem-limit {}MB would be enough",
                source.least() / 1'000'000, output.least() / 1'000'000, limit / 1'000'000,
                (least + 999'999) / 1'000'000);
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

// Options of the output, or of a rank's directory of it, where no other model shares the memory.
inference::ModelOptions options_alone(const Checkpoint& output, std::span<const std::size_t> most,
                                      const RunOptions& options) {
  const inference::Profile profile = options.output_profile;
  const RunMemory need = inference::run_memory(output, profile, inference::plain_kv_format(profile),
                                               most, options.threads);
  return {.profile = profile,
          .threads = options.threads,
          .weight_limit = inference::weight_limit(need, options.mem_limit),
          .without_mtp = true};
}

// Both answer token by token.
template <typename Source>
class GreedyLockstep {
 public:
  GreedyLockstep(Source& source, AnsweringModel& output, std::span<const Prompt> prompts,
                 const RunOptions& options)
      : source_(source), output_(output), options_(options) {
    for (const Prompt& prompt : prompts) report_.prompts.push_back({.prompt = prompt});
  }

  GreedyReport run() {
    for (std::size_t n = 0; n < options_.tokens; ++n) {
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
    report_.source_near_ties = source_.near_ties();
    report_.output_near_ties = output_.near_ties();
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
        const auto known = source_.logits(p);
        const double difference = known.empty() ? 0 : largest_difference(known, output_.logits(p));
        if (source_.take(p) != output_.take(p)) {
          part(report_.prompts[p], n, top_gap(known.empty() ? output_.logits(p) : known));
        } else if (!known.empty()) {
          largest = std::max(largest, difference);
          any_agreed = true;
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

  Source& source_;
  AnsweringModel& output_;
  const RunOptions& options_;
  GreedyReport report_;
  std::optional<double> largest_before_;
};

}  // namespace

std::string_view greedy_outcome_name(GreedyOutcome outcome) {
  constexpr std::array kNames = {"equal", "inconclusive", "different"};
  return kNames.at(static_cast<std::size_t>(outcome));
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
                            const RunOptions& options) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  const inference::ModelSpec other = inference::model_spec(output);
  if (spec.vocab != other.vocab) {
    throw Error(ErrorCode::kMismatch, "the source has a vocabulary of {}, the output of {}",
                spec.vocab, other.vocab);
  }
  if (prompts.empty()) throw Error(ErrorCode::kInvalidArgument, "there is no prompt");
  std::vector<Ids> ids;
  for (const Prompt& prompt : prompts) ids.push_back(prompt.ids);
  const std::vector<std::size_t> most = inference::final_lengths(spec, ids, options.tokens);
  const std::vector<std::int32_t> eos =
      inference::read_generation_config(source.directory(), source.config()).eos;

  const auto need = [&](const Checkpoint& model, inference::Profile profile) {
    return inference::run_memory(model, profile, inference::plain_kv_format(profile), most,
                                 options.threads);
  };
  const Share share = share_memory(need(source, options.source_profile),
                                   need(output, options.output_profile), options.mem_limit);
  const auto model_options = [&](inference::Profile profile, std::uint64_t weights) {
    return inference::ModelOptions{.profile = profile,
                                   .threads = options.threads,
                                   .weight_limit = weights,
                                   .without_mtp = true};
  };
  if (options.ranks != nullptr) tell_questions(*options.ranks, ids, most, eos);
  AnsweringModel source_side(source, model_options(options.source_profile, share.source), ids, most,
                             eos, nullptr);
  AnsweringModel output_side(output, model_options(options.output_profile, share.output), ids, most,
                             eos, options.ranks);
  GreedyReport report = GreedyLockstep(source_side, output_side, prompts, options).run();
  finish_greedy(report, tokenizer);
  return report;
}

// The answers are those of the output, so every rank knows them by itself.
void follow_greedy(const Checkpoint& rank, const RunOptions& options) {
  std::vector<Ids> ids = broadcast(*options.ranks, kQuestions, 0, inference::Lists());
  INGOT_CHECK(ids.size() > 2);
  const Ids eos = std::move(ids.back());
  ids.pop_back();
  const std::vector<std::size_t> most(ids.back().begin(), ids.back().end());
  ids.pop_back();
  AnsweringModel model(rank, options_alone(rank, most, options), ids, most, eos, options.ranks);
  const auto is_done = [&](std::size_t p) { return model.is_done(p); };
  for (std::size_t n = 0; n < options.tokens; ++n) {
    if (std::ranges::all_of(std::views::iota(std::size_t{0}, ids.size()), is_done)) break;
    model.advance(n == 0);
    for (std::size_t p = 0; p < ids.size(); ++p) {
      if (!model.is_done(p)) model.take(p);
    }
  }
  static_cast<void>(model.near_ties());  // which the first rank reports
}

GreedyReport compare_recorded_answers(const Checkpoint& model,
                                      std::span<const RecordedAnswer> recorded,
                                      const RunOptions& options) {
  const inference::ModelSpec spec = inference::model_spec(model.family(), model.config());
  std::vector<Ids> ids;
  std::vector<Prompt> prompts;
  RunOptions longest = options;
  longest.tokens = 0;
  longest.progress = {};  // counts layers
  for (const RecordedAnswer& answer : recorded) {
    ids.push_back(answer.prompt);
    prompts.push_back({.ids = answer.prompt});
    longest.tokens = std::max(longest.tokens, answer.tokens.size());
  }
  std::vector<std::size_t> most = inference::final_lengths(spec, ids, longest.tokens);
  // One token, where the prompt fills the context.
  for (std::size_t p = 0; p < most.size(); ++p)
    most[p] = std::clamp(most[p], ids[p].size() + 1, ids[p].size() + recorded[p].tokens.size());
  AnsweringModel output(model, options_alone(model, most, options), ids, most, {}, nullptr);
  RecordedAnswers source(recorded, ids, most);
  GreedyReport report = GreedyLockstep(source, output, prompts, longest).run();
  finish_greedy(report, nullptr);
  return report;
}

}  // namespace ingot::verify
