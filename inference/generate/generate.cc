#include "inference/generate/generate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "inference/generate/drafts.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"

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
  std::size_t fed = 0;                    ///< tokens in the cache
  std::size_t most = 0;                   ///< tokens that it may have in the end
  std::size_t rows = 0;                   ///< of the current step
  bool done = false;                      ///< or another group's
  std::vector<std::int32_t> drafts = {};  ///< of the tokens after its last one
};

// Prompts are dealt to the data-parallel groups of a stage in turn.
struct DataParallel {
  explicit DataParallel(const RankView& rank)
      : n_groups(rank.topology.ranks_per_stage() / rank.topology.tp),
        group(rank.rank % rank.topology.ranks_per_stage() / rank.topology.tp),
        speaks(rank.tp_rank() == 0),
        is_first_stage(rank.stage() == 0) {}

  [[nodiscard]] bool owns(std::size_t prompt) const { return prompt % n_groups == group; }

  std::size_t n_groups, group;
  bool speaks;          ///< for its group and stage
  bool is_first_stage;  ///< which tells what is the same on all stages
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

// Whether another token was nearly as likely as the one that was taken.
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
        groups_(model.rank()),
        most_(final_lengths(model.spec(), prompts, options.max_new_tokens)),
        cache_(model.make_cache(options.kv_format, tokens_in_pages())) {
    if (options.drafts > 0) {
      drafter_.emplace(model, options.drafts, options.sampling);
      result_.drafts.proposed.resize(options.drafts);
      result_.drafts.held.resize(options.drafts);
    }
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      sequences_.push_back({.prompt_hash = hash_of_prompt(prompts[i]),
                            .most = most_[i],
                            .done = !groups_.owns(i) || most_[i] <= prompts[i].size()});
      if (groups_.owns(i)) sequences_.back().id = cache_.add();
      result_.answers.push_back({.prompt = prompts[i], .tokens = {}});
    }
  }

  GenerateResult run() {
    start_ = Clock::now();
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      if (groups_.owns(i) && sequences_[i].done) tell(i);
    }
    while (is_to_go_on(choose_rows())) step();
    share_answers();
    return std::move(result_);
  }

 private:
  [[nodiscard]] std::size_t tokens_in_pages() const {
    std::size_t n_tokens = 0;
    for (std::size_t i = 0; i < most_.size(); ++i) {
      if (groups_.owns(i)) n_tokens += round_up(most_[i], KvCache::kPageTokens);
    }
    return n_tokens;
  }

  // Whether all ranks take another step: until no group has work, or a rank is to stop. One small
  // sum a step; a group without work takes the steps of the others without rows.
  bool is_to_go_on(bool has_rows) {
    const bool is_to_stop = options_.stop_requested && options_.stop_requested();
    std::array<float, 2> counts = {has_rows ? 1.0F : 0.0F, is_to_stop ? 1.0F : 0.0F};
    model_.comm().all_reduce({.group = Group::kWorld, .name = "what comes next"}, counts);
    if (counts[0] == 0) return false;
    if (counts[1] > 0) stop_all();
    return counts[1] == 0;
  }

  // Every rank gets the answers of all groups, and what they have counted.
  void share_answers() {
    Comm& comm = model_.comm();
    if (comm.size(Group::kWorld) == 1) return;
    Numbers mine;
    const bool first = groups_.is_first_stage;
    if (groups_.speaks) {
      mine.put(result_.near_ties.router);
      mine.put(result_.near_ties.indexer);
      mine.put(first ? result_.near_ties.argmax : 0);
      mine.put(first ? result_.times.prefill_tokens : 0);
      mine.put(first ? result_.times.decode_tokens : 0);
      mine.put(first ? result_.drafts.passes : 0);
      mine.put(first ? result_.drafts.tokens : 0);
      for (std::size_t k = 0; k < options_.drafts; ++k) {
        mine.put(first ? result_.drafts.proposed[k] : 0);
        mine.put(first ? result_.drafts.held[k] : 0);
      }
      for (std::size_t i = 0; first && i < sequences_.size(); ++i) {
        if (!groups_.owns(i)) continue;
        const Answer& answer = result_.answers[i];
        mine.put(i);
        mine.put(static_cast<std::size_t>(answer.stop));
        mine.put(answer.tokens.size());
        for (const std::int32_t token : answer.tokens) mine.put(static_cast<std::uint32_t>(token));
      }
    }
    const std::vector<Bytes> all =
        exchange(comm, {.group = Group::kWorld, .name = "answers"},
                 std::vector<Bytes>(comm.size(Group::kWorld), mine.bytes()));
    result_.times.prefill_tokens = result_.times.decode_tokens = 0;
    result_.near_ties = {};
    result_.drafts = {.proposed = std::vector<std::uint64_t>(options_.drafts),
                      .held = std::vector<std::uint64_t>(options_.drafts)};
    for (const Bytes& bytes : all) {
      if (!bytes.empty()) take_answers(Numbers(bytes));
    }
  }

  void take_answers(Numbers from) {
    result_.near_ties.router += from.take();
    result_.near_ties.indexer += from.take();
    result_.near_ties.argmax += from.take();
    result_.times.prefill_tokens += from.take();
    result_.times.decode_tokens += from.take();
    result_.drafts.passes += from.take();
    result_.drafts.tokens += from.take();
    for (std::size_t k = 0; k < options_.drafts; ++k) {
      result_.drafts.proposed[k] += from.take();
      result_.drafts.held[k] += from.take();
    }
    while (!from.is_at_end()) {
      const std::size_t i = from.take();
      INGOT_CHECK(i < result_.answers.size());
      Answer answer{.prompt = result_.answers[i].prompt,
                    .tokens = {},
                    .stop = static_cast<StopReason>(from.take())};
      for (std::size_t left = from.take(); left > 0; --left)
        answer.tokens.push_back(static_cast<std::int32_t>(from.take()));
      if (groups_.owns(i)) continue;
      result_.answers[i] = std::move(answer);
      for (const std::int32_t token : result_.answers[i].tokens) {
        if (options_.on_token) options_.on_token(i, token);
      }
      tell(i);
    }
  }

  [[nodiscard]] std::int32_t token_at(std::size_t i, std::size_t position) const {
    const Answer& answer = result_.answers[i];
    if (position < answer.prompt.size()) return answer.prompt[position];
    const std::size_t at = position - answer.prompt.size();
    return at < answer.tokens.size() ? answer.tokens[at]
                                     : sequences_[i].drafts[at - answer.tokens.size()];
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
        sequence.rows = 1 + sequence.drafts.size();
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
    std::vector<std::size_t> fed;
    std::vector<FedRows> held;
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      const Sequence& sequence = sequences_[i];
      if (sequence.rows == 0) continue;
      const std::size_t prompt = result_.answers[i].prompt.size();
      fed.push_back(i);
      held.push_back({.sequence = sequence.id,
                      .first_row = rows.size(),
                      .first_position = static_cast<std::uint32_t>(sequence.fed),
                      .prompt_tokens = prompt,
                      .prompt_hash = sequence.prompt_hash});
      for (std::size_t r = 0; r < sequence.rows; ++r) {
        const std::size_t position = sequence.fed + r;
        rows.push_back({.sequence = sequence.id,
                        .position = static_cast<std::uint32_t>(position),
                        .token = token_at(i, position),
                        .logits = position + 1 >= prompt,
                        .is_answer = position >= prompt});
      }
      if (sequence.fed < prompt) n_prompt_rows += sequence.rows;
    }
    Matrix normed;
    const Matrix logits =
        model_.step(rows, cache_, {.near_ties = &result_.near_ties}, drafter_ ? &normed : nullptr);
    std::size_t n_held = 0, at = 0;
    for (std::size_t s = 0; s < fed.size(); ++s) {
      take_rows(fed[s], logits, at, held[s]);
      n_held += held[s].count;
    }
    if (drafter_) draft(normed, fed, held);

    GenerateTimes& times = result_.times;
    times.prefill_tokens += n_prompt_rows;
    times.decode_tokens += n_held - n_prompt_rows;
    (n_prompt_rows > 0 ? times.prefill_seconds : times.decode_seconds) += seconds_since(start);
    if (at > 0 && times.first_token_seconds == 0) times.first_token_seconds = seconds_since(start_);
  }

  // Takes the tokens that rows of a step decide, up to the first proposal that does not hold.
  // `logits` from row `at` on are its own; `at` becomes that of the next sequence.
  void take_rows(std::size_t i, const Matrix& logits, std::size_t& at, FedRows& held) {
    Sequence& sequence = sequences_[i];
    const std::size_t prompt = result_.answers[i].prompt.size();
    const bool is_pass = sequence.fed >= prompt;
    const std::vector<std::int32_t> drafts = std::exchange(sequence.drafts, {});
    const std::size_t end = sequence.fed + sequence.rows;
    std::size_t next_logits = at;
    at += end < prompt ? 0 : end - std::max(sequence.fed, prompt - 1);
    if (is_pass) ++result_.drafts.passes;
    for (std::size_t r = 0; r < sequence.rows; ++r) {
      ++sequence.fed;
      ++held.count;
      if (sequence.fed < prompt) {
        held.next.push_back(token_at(i, sequence.fed));
        continue;
      }
      const std::int32_t token = take_token(i, logits.row(next_logits++));
      held.next.push_back(token);
      if (is_pass) ++result_.drafts.tokens;
      if (r == drafts.size() || !is_pass) continue;
      ++result_.drafts.proposed[r];
      if (token != drafts[r]) break;
      ++result_.drafts.held[r];
      if (sequence.done) break;
    }
  }

  // What the next step is to check of the sequences that go on.
  void draft(const Matrix& normed, const std::vector<std::size_t>& fed,
             std::vector<FedRows>& held) {
    std::vector<std::size_t> going_on;
    std::vector<FedRows> rows;
    for (std::size_t s = 0; s < fed.size(); ++s) {
      const Sequence& sequence = sequences_[fed[s]];
      if (sequence.done) continue;
      // A step of d proposals may give d + 1 tokens, beside the one that is not fed yet.
      if (sequence.fed >= held[s].prompt_tokens)
        held[s].most_drafts = std::min(options_.drafts, sequence.most - sequence.fed - 2);
      going_on.push_back(fed[s]);
      rows.push_back(std::move(held[s]));
    }
    std::vector<std::vector<std::int32_t>> drafts = drafter_->propose(normed, rows, cache_);
    for (std::size_t s = 0; s < drafts.size(); ++s)
      sequences_[going_on[s]].drafts = std::move(drafts[s]);
  }

  std::int32_t take_token(std::size_t i, std::span<const float> logits) {
    Sequence& sequence = sequences_[i];
    Answer& answer = result_.answers[i];
    const std::int32_t token = sample_token(
        logits, options_.sampling, {.prompt = sequence.prompt_hash, .position = sequence.fed});
    answer.tokens.push_back(token);
    if (options_.sampling.temperature == 0 && has_near_rival(logits, token))
      ++result_.near_ties.argmax;
    if (options_.on_token) options_.on_token(i, token);
    const bool is_end = std::ranges::find(options_.eos, token) != options_.eos.end();
    sequence.done = is_end || answer.prompt.size() + answer.tokens.size() >= sequence.most;
    if (is_end) answer.stop = StopReason::kEos;
    if (!sequence.done) return token;
    cache_.free(sequence.id);
    tell(i);
    return token;
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
  DataParallel groups_;
  std::vector<std::size_t> most_;
  ModelCache cache_;
  std::optional<Drafter> drafter_;
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
