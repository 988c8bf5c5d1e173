#include "inference/generate/generate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "inference/generate/coordinator.h"
#include "inference/generate/drafts.h"
#include "inference/generate/scheduler.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"

namespace ingot::inference {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A sequence of this group.
struct GroupSequence {
  SequenceId id = 0;
  std::uint64_t prompt_hash = 0;
  std::size_t cached = 0;  ///< tokens in the cache
  std::size_t reached =
      0;                 ///< most tokens that were in the cache before the sequence was preempted
  std::size_t most = 0;  ///< most tokens that the sequence may have in the end
  bool is_open = false;  ///< true while the request has arrived and its answer has not ended
  std::vector<std::int32_t> drafts = {};  ///< proposals for the tokens after its last one
};

// Numbers of answers between ranks.
class Numbers {
 public:
  Numbers() = default;
  explicit Numbers(const Bytes& bytes) : values_(bytes.size() / sizeof(std::uint32_t)) {
    INGOT_CHECK(bytes.size() % sizeof(std::uint32_t) == 0);
    if (!bytes.empty()) std::memcpy(values_.data(), bytes.data(), bytes.size());
  }
  [[nodiscard]] Bytes bytes() const {
    const auto bytes = std::as_bytes(std::span(values_));
    return {bytes.begin(), bytes.end()};
  }
  void put(std::size_t value) { values_.push_back(static_cast<std::uint32_t>(value)); }
  [[nodiscard]] bool is_at_end() const { return at_ == values_.size(); }
  std::uint32_t take() {
    INGOT_CHECK(!is_at_end());
    return values_[at_++];
  }

 private:
  std::vector<std::uint32_t> values_;
  std::size_t at_ = 0;
};

// True if another token was nearly as likely as the one that was taken.
bool has_near_rival(std::span<const float> logits, std::int32_t token) {
  const auto taken = static_cast<std::uint32_t>(token);
  return is_near_tie(logits, {&taken, 1});
}

class Batch {
 public:
  Batch(const Model& model, std::span<const std::vector<std::int32_t>> prompts,
        const GenerateOptions& options)
      : model_(model),
        options_(options),
        most_(final_lengths(model.spec(), prompts, options.max_new_tokens)),
        costs_(costs_of(prompts)),
        coordinator_(model.rank(), model.comm(), costs_, options.arrivals),
        cache_tokens_(options.cache_tokens == 0 ? tokens_in_pages() : options.cache_tokens),
        scheduler_({.batch_tokens = options.batch_tokens,
                    .cache_pages = ceil_div(cache_tokens_, KvCache::kPageTokens),
                    .drafts = options.drafts}),
        cache_(model.make_cache(options.kv_format, cache_tokens_, options.kv_scales)) {
    if (options.drafts > 0) {
      drafter_.emplace(model, options.drafts, options.sampling);
      result_.drafts.proposed.resize(options.drafts);
      result_.drafts.accepted.resize(options.drafts);
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      sequences_.push_back({.prompt_hash = hash_of_prompt(prompts[i]), .most = most_[i]});
      result_.answers.push_back({.prompt = prompts[i], .tokens = {}});
    }
  }

  GenerateResult run() {
    bool took_step = false;
    while (true) {
      const bool stops = options_.stop_requested && options_.stop_requested();
      const Coordinator::Decision decision =
          coordinator_.meet(scheduler_.outstanding(), took_step ? &counts_ : nullptr, stops);
      if (decision.figures) note(*decision.figures);
      for (const std::size_t i : decision.requests) take_request(i);
      if (decision.next == Coordinator::Next::kStopped) stop_all();
      if (decision.next > Coordinator::Next::kWait) break;
      took_step = decision.next == Coordinator::Next::kStep;
      if (took_step && !finish_step()) break;
    }
    share_answers();
    return std::move(result_);
  }

 private:
  // Returns false, with the answers as far as they are, when a stop was asked for in the middle.
  // Ranks end a step that they have begun together.
  bool finish_step() {
    const bool is_alone = model_.comm().size(Group::kWorld) == 1;
    const StopScope stop(is_alone ? options_.stop_requested : nullptr, "a step was computed");
    try {
      step();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInterrupted || !is_alone) throw;
      stop_all();
      return false;
    }
    return true;
  }

  [[nodiscard]] std::vector<std::size_t> costs_of(
      std::span<const std::vector<std::int32_t>> prompts) const {
    std::vector<std::size_t> costs;
    for (std::size_t i = 0; i < prompts.size(); ++i)
      costs.push_back(most_[i] > prompts[i].size() ? most_[i] : 0);
    return costs;
  }

  [[nodiscard]] std::size_t tokens_in_pages() const {
    std::size_t n_tokens = 0;
    for (const std::size_t most : most_) n_tokens += round_up(most, KvCache::kPageTokens);
    return n_tokens;
  }

  [[nodiscard]] bool is_ours(std::size_t i) const {
    return coordinator_.owner(i) == coordinator_.group();
  }

  void take_request(std::size_t i) {
    if (costs_[i] == 0) return tell(i);
    sequences_[i].is_open = true;
    scheduler_.add(i, result_.answers[i].prompt.size(), most_[i]);
  }

  void note(const StepFigures& figures) {
    StepTotals& totals = result_.steps;
    ++totals.number;
    add_counts<StepCounts>(totals, figures);
    totals.most_sequences = std::max(totals.most_sequences, figures.sequences);
    if (figures.expert_tokens > 0) {
      totals.imbalance += (figures.imbalance - totals.imbalance) *
                          static_cast<double>(figures.expert_tokens) /
                          static_cast<double>(totals.expert_tokens);
    }
    totals.compute_seconds += figures.compute_seconds;
    totals.exchange_seconds += figures.exchange_seconds;
    totals.waiting_seconds += figures.waiting_seconds;
    if (options_.on_step) options_.on_step(figures);
  }

  // Counters of the answers: two of layers, then those of tokens, which the first stage counts for
  // all stages.
  std::vector<std::uint64_t*> counters() {
    std::vector<std::uint64_t*> counters = {
        &result_.near_ties.router,     &result_.near_ties.indexer,   &result_.near_ties.argmax,
        &result_.times.prefill_tokens, &result_.times.decode_tokens, &result_.drafts.passes,
        &result_.drafts.tokens};
    for (std::vector<std::uint64_t>* by_place :
         {&result_.drafts.proposed, &result_.drafts.accepted})
      for (std::uint64_t& count : *by_place) counters.push_back(&count);
    return counters;
  }

  // Every rank gets the answers of all groups, and what they have counted.
  void share_answers() {
    Comm& comm = model_.comm();
    if (comm.size(Group::kWorld) == 1) return;
    Numbers mine;
    const bool first = model_.rank().stage() == 0;
    const std::vector<std::uint64_t*> sums = counters();
    if (model_.rank().tp_rank() == 0) {
      for (std::size_t c = 0; c < sums.size(); ++c) mine.put(c < 2 || first ? *sums[c] : 0);
      for (std::size_t i = 0; first && i < sequences_.size(); ++i) {
        if (!is_ours(i)) continue;
        const Answer& answer = result_.answers[i];
        mine.put(i);
        mine.put(static_cast<std::size_t>(answer.stop));
        mine.put(static_cast<std::size_t>(answer.first_token_seconds * 1e3));
        mine.put(static_cast<std::size_t>(answer.end_seconds * 1e3));
        mine.put(answer.tokens.size());
        for (const std::int32_t token : answer.tokens) mine.put(static_cast<std::uint32_t>(token));
      }
    }
    const std::vector<Bytes> all =
        exchange(comm, {.group = Group::kWorld, .name = "answers"},
                 std::vector<Bytes>(comm.size(Group::kWorld), mine.bytes()));
    for (std::uint64_t* sum : sums) *sum = 0;
    for (const Bytes& bytes : all) {
      if (!bytes.empty()) take_answers(Numbers(bytes));
    }
  }

  void take_answers(Numbers from) {
    for (std::uint64_t* sum : counters()) *sum += from.take();
    while (!from.is_at_end()) {
      const std::size_t i = from.take();
      INGOT_CHECK(i < result_.answers.size());
      Answer answer{.prompt = result_.answers[i].prompt, .tokens = {}};
      answer.stop = static_cast<StopReason>(from.take());
      answer.first_token_seconds = from.take() / 1e3;
      answer.end_seconds = from.take() / 1e3;
      for (std::size_t left = from.take(); left > 0; --left)
        answer.tokens.push_back(static_cast<std::int32_t>(from.take()));
      if (is_ours(i)) continue;
      result_.answers[i] = std::move(answer);
      for (const std::int32_t token : result_.answers[i].tokens) {
        if (options_.on_token) options_.on_token(i, token);
      }
      tell(i);
    }
  }

  [[nodiscard]] std::size_t n_known(std::size_t i) const {
    return result_.answers[i].prompt.size() + result_.answers[i].tokens.size();
  }

  [[nodiscard]] std::int32_t token_at(std::size_t i, std::size_t position) const {
    const Answer& answer = result_.answers[i];
    if (position < answer.prompt.size()) return answer.prompt[position];
    const std::size_t at = position - answer.prompt.size();
    return at < answer.tokens.size() ? answer.tokens[at]
                                     : sequences_[i].drafts[at - answer.tokens.size()];
  }

  // Sequences come and go in the caches as the scheduler says.
  std::vector<Scheduler::Share> next_shares() {
    Scheduler::Step next = scheduler_.next();
    for (const std::size_t i : next.preempted) {
      cache_.free(sequences_[i].id);
      sequences_[i].cached = 0;
      sequences_[i].drafts.clear();
    }
    for (const std::size_t i : next.entered) sequences_[i].id = cache_.add();
    counts_.preempted = next.preempted.size();
    counts_.sequences = scheduler_.n_running();
    counts_.waiting = scheduler_.n_waiting();
    return std::move(next.shares);
  }

  void step() {
    const Clock::time_point start = Clock::now();
    const std::uint64_t bytes_before = model_.expert_counters().bytes_read;
    counts_ = {};
    counts_.cache_capacity = cache_tokens_;
    const std::vector<Scheduler::Share> shares = next_shares();
    std::vector<Row> rows;
    std::vector<AcceptedRows> accepted;
    for (const Scheduler::Share& share : shares) {
      const GroupSequence& sequence = sequences_[share.id];
      const std::size_t prompt = result_.answers[share.id].prompt.size();
      accepted.push_back({.sequence = sequence.id,
                          .first_row = rows.size(),
                          .first_position = static_cast<std::uint32_t>(share.first),
                          .prompt_tokens = prompt,
                          .prompt_hash = sequence.prompt_hash});
      for (std::size_t position = share.first; position < share.first + share.count; ++position) {
        rows.push_back({.sequence = sequence.id,
                        .position = static_cast<std::uint32_t>(position),
                        .token = token_at(share.id, position),
                        .logits = position + 1 >= n_known(share.id),
                        .is_answer = position >= prompt});
      }
    }
    Matrix normed;
    const Matrix logits = model_.step(
        rows, cache_, {.near_ties = &result_.near_ties, .expert_tokens = &counts_.expert_tokens},
        drafter_ ? &normed : nullptr);
    std::size_t at = 0;
    for (std::size_t s = 0; s < shares.size(); ++s) take_rows(shares[s], logits, at, accepted[s]);
    if (drafter_) draft(normed, shares, accepted);
    for (const Scheduler::Share& share : shares) {
      const GroupSequence& sequence = sequences_[share.id];
      if (!sequence.is_open) continue;
      scheduler_.advance(share.id, sequence.cached, n_known(share.id), sequence.drafts.size());
    }
    counts_.cached_tokens = scheduler_.n_cached();
    counts_.expert_bytes_read = model_.expert_counters().bytes_read - bytes_before;
    take_time(seconds_since(start));
    if (at > 0 && result_.times.first_token_seconds == 0)
      result_.times.first_token_seconds = coordinator_.now();
  }

  void take_time(double seconds) {
    GenerateTimes& times = result_.times;
    const auto prompt = static_cast<double>(counts_.prompt_tokens);
    const auto answer = static_cast<double>(counts_.answer_tokens);
    times.prefill_tokens += counts_.prompt_tokens;
    times.decode_tokens += counts_.answer_tokens;
    if (prompt + answer == 0) return;
    times.prefill_seconds += seconds * prompt / (prompt + answer);
    times.decode_seconds += seconds * answer / (prompt + answer);
  }

  void count_token(std::size_t i) {
    GroupSequence& sequence = sequences_[i];
    if (sequence.cached <= sequence.reached) {
      ++counts_.recomputed_tokens;
      return;
    }
    sequence.reached = sequence.cached;
    ++(sequence.cached <= result_.answers[i].prompt.size() ? counts_.prompt_tokens
                                                           : counts_.answer_tokens);
  }

  // Takes the tokens that rows of a step decide, up to the first proposal that does not hold.
  // `logits` from row `at` on are its own; `at` becomes that of the next sequence.
  void take_rows(const Scheduler::Share& share, const Matrix& logits, std::size_t& at,
                 AcceptedRows& accepted) {
    const std::size_t i = share.id, known = n_known(i), end = share.first + share.count;
    GroupSequence& sequence = sequences_[i];
    const bool is_pass = known > result_.answers[i].prompt.size() && end >= known;
    const std::vector<std::int32_t> drafts = std::exchange(sequence.drafts, {});
    std::size_t next_logits = at;
    if (end >= known) at += end + 1 - std::max(share.first + 1, known);
    if (is_pass) ++result_.drafts.passes;
    for (std::size_t position = share.first; position < end; ++position) {
      ++sequence.cached;
      ++accepted.count;
      count_token(i);
      if (sequence.cached < known) {
        accepted.next.push_back(token_at(i, sequence.cached));
        continue;
      }
      const std::int32_t token = take_token(i, logits.row(next_logits++));
      accepted.next.push_back(token);
      if (is_pass) ++result_.drafts.tokens;
      if (position + 1 == end) break;
      const std::size_t k = sequence.cached - known;  // number of the proposal in the next row
      ++result_.drafts.proposed[k];
      if (token != drafts[k]) break;
      ++result_.drafts.accepted[k];
      if (!sequence.is_open) break;
    }
  }

  // Drafts the proposals that the next step checks, for the sequences that go on.
  void draft(const Matrix& normed, std::span<const Scheduler::Share> shares,
             std::vector<AcceptedRows>& accepted) {
    std::vector<std::size_t> going_on;
    std::vector<AcceptedRows> rows;
    for (std::size_t s = 0; s < shares.size(); ++s) {
      const std::size_t i = shares[s].id;
      const GroupSequence& sequence = sequences_[i];
      if (!sequence.is_open) continue;
      // A step of d proposals may give d + 1 tokens, in addition to the one that is not fed yet.
      if (!result_.answers[i].tokens.empty() && sequence.cached + 1 == n_known(i))
        accepted[s].most_drafts = std::min(options_.drafts, sequence.most - sequence.cached - 2);
      going_on.push_back(i);
      rows.push_back(std::move(accepted[s]));
    }
    std::vector<std::vector<std::int32_t>> drafts = drafter_->propose(normed, rows, cache_);
    for (std::size_t s = 0; s < drafts.size(); ++s)
      sequences_[going_on[s]].drafts = std::move(drafts[s]);
  }

  std::int32_t take_token(std::size_t i, std::span<const float> logits) {
    GroupSequence& sequence = sequences_[i];
    Answer& answer = result_.answers[i];
    const std::int32_t token = sample_token(
        logits, options_.sampling, {.prompt = sequence.prompt_hash, .position = sequence.cached});
    if (answer.tokens.empty()) answer.first_token_seconds = coordinator_.now();
    answer.tokens.push_back(token);
    if (options_.sampling.temperature == 0 && has_near_rival(logits, token))
      ++result_.near_ties.argmax;
    if (options_.on_token) options_.on_token(i, token);
    const bool is_end = std::ranges::find(options_.eos, token) != options_.eos.end();
    sequence.is_open = !is_end && n_known(i) < sequence.most;
    if (is_end) answer.stop = StopReason::kEos;
    if (sequence.is_open) return token;
    answer.end_seconds = coordinator_.now();
    cache_.free(sequence.id);
    scheduler_.finish(i);
    tell(i);
    return token;
  }

  void tell(std::size_t i) const {
    if (options_.on_answer) options_.on_answer(i, result_.answers[i]);
  }

  // Every rank itself reports the requests that no rank owns.
  void stop_all() {
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (!sequences_[i].is_open && coordinator_.owner(i)) continue;
      result_.answers[i].stop = StopReason::kStopped;
      result_.answers[i].end_seconds = coordinator_.now();
      tell(i);
    }
  }

  const Model& model_;
  const GenerateOptions& options_;
  std::vector<std::size_t> most_, costs_;
  Coordinator coordinator_;
  std::size_t cache_tokens_;
  Scheduler scheduler_;
  ModelCache cache_;
  std::optional<Drafter> drafter_;
  std::vector<GroupSequence> sequences_;
  StepCounts counts_;  // counts of the step under way
  GenerateResult result_;
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
    if (prompt.empty()) throw Error(ErrorCode::kInvalidArgument, "prompt {} is empty", i);
    for (const std::int32_t id : prompt) {
      if (id < 0 || static_cast<std::size_t>(id) >= spec.vocab) {
        throw Error(ErrorCode::kInvalidArgument,
                    "prompt {}: token id {} is not within the vocabulary of {}", i, id, spec.vocab);
      }
    }
    const std::size_t context = spec.max_positions == 0 ? SIZE_MAX : spec.max_positions;
    if (prompt.size() > context) {
      throw Error(ErrorCode::kLimit, "prompt {} has {} tokens, more than the model's context of {}",
                  i, prompt.size(), context);
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
