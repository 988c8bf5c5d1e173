#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/commands/launch.h"
#include "cli/flags/generate_input.h"
#include "cli/report/step_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/session.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/tokenizer/tokenizer.h"
#include "library/options/flag_table.h"
#include "report/figures.h"
#include "shard/join/source.h"

namespace ingot::cli {

using formats::Json;

namespace {

/// Prints answers to stdout as they come, in the order of their prompts: the first unfinished one
/// streams, the others wait. Text where there is a tokenizer and `as_ids` is false, else ids.
class AnswerPrinter {
 public:
  AnswerPrinter(std::size_t n_prompts, const inference::Tokenizer* tokenizer, bool as_ids,
                std::vector<std::int32_t> eos)
      : streams_(n_prompts), eos_(std::move(eos)) {
    if (tokenizer == nullptr || as_ids) return;
    for (Stream& stream : streams_) stream.decoder.emplace(*tokenizer, true);
  }

  void on_token(std::size_t prompt, std::int32_t token) {
    Stream& stream = streams_[prompt];
    stream.waiting += stream.decoder ? stream.decoder->push(token)
                                     : fmt::format("{}{}", stream.any ? " " : "", token);
    stream.any = true;
    if (std::ranges::find(eos_, token) != eos_.end()) stream.end();
    flush();
  }

  /// Ends the streams that are still open.
  void finish() {
    for (Stream& stream : streams_) stream.end();
    flush();
  }

 private:
  struct Stream {
    std::string waiting;
    bool ended = false, any = false;
    std::optional<inference::StreamDecoder> decoder;  ///< nullopt for ids

    void end() {
      if (ended) return;
      if (decoder) waiting += decoder->finish();
      waiting += "\n";
      ended = true;
    }
  };

  void flush() {
    while (current_ < streams_.size()) {
      Stream& stream = streams_[current_];
      write_model_text(stream.waiting);
      stream.waiting.clear();
      if (!stream.ended) break;
      ++current_;
      if (current_ < streams_.size()) out() << "\n";
    }
    out().flush();
  }

  std::vector<Stream> streams_;
  std::vector<std::int32_t> eos_;
  std::size_t current_ = 0;
};

double rate(std::size_t n, double seconds) {
  return seconds > 0 ? static_cast<double>(n) / seconds : 0;
}

double count(std::uint64_t n) {
  return static_cast<double>(n);
}

/// `; drafts: 1.95 tokens a pass, accepted 94.7% of 169 at position 1, 66.1% of 160 at position 2`.
std::string drafts_text(const inference::DraftCounts& drafts) {
  std::string text = fmt::format("; drafts: {:.2f} tokens a pass, accepted",
                                 rate(drafts.tokens, count(drafts.passes)));
  for (std::size_t k = 0; k < drafts.proposed.size(); ++k) {
    text += fmt::format("{} {:.1f}% of {} at position {}", k == 0 ? "" : ",",
                        100 * rate(drafts.accepted[k], count(drafts.proposed[k])),
                        drafts.proposed[k], k + 1);
  }
  return text;
}

/// One answer, in a document; with its times where prompts arrive one after the other.
Json answer_json(const inference::Answer& answer, const inference::Tokenizer* tokenizer,
                 const std::optional<double>& arrived) {
  Json json = {{"prompt_ids", answer.prompt}, {"generated_ids", answer.tokens}};
  if (tokenizer != nullptr) json["text"] = tokenizer->decode(answer.tokens, /*skip_special=*/true);
  json["stop"] = std::string(inference::stop_reason_name(answer.stop));
  if (arrived) {
    json["seconds"] = {{"arrived", *arrived},
                       {"first_token", answer.first_token_seconds},
                       {"end", answer.end_seconds}};
  }
  return json;
}

/// A line of --jsonl: which prompt it was, the prompt as it was given, and the answer.
std::string answer_line(std::size_t index, const GivenPrompt& prompt,
                        const inference::Answer& answer, const inference::Tokenizer* tokenizer) {
  Json json = {{"index", index}};
  json.update(*prompt.given);
  json.update(answer_json(answer, tokenizer, prompt.arrives));
  return json.dump() + "\n";
}

/// The document of --json.
Json generate_json(const inference::GenerateResult& result, const std::vector<GivenPrompt>& given,
                   const inference::Tokenizer* tokenizer, const inference::Model& model) {
  Json sequences = Json::array();
  for (std::size_t i = 0; i < given.size(); ++i)
    sequences.push_back(answer_json(result.answers[i], tokenizer, given[i].arrives));
  const inference::GenerateTimes& times = result.times;
  const inference::ExpertCounters experts = model.expert_counters();
  return {{"sequences", sequences},
          {"prefill",
           {{"tokens", times.prefill_tokens},
            {"tokens_per_second", rate(times.prefill_tokens, times.prefill_seconds)}}},
          {"decode",
           {{"tokens", times.decode_tokens},
            {"tokens_per_second", rate(times.decode_tokens, times.decode_seconds)}}},
          {"seconds_to_first_token", times.first_token_seconds},
          {"peak_memory_bytes", peak_memory()},
          {"steps", steps_json(result.steps)},
          {"near_ties",
           {{"router", result.near_ties.router},
            {"indexer", result.near_ties.indexer},
            {"argmax", result.near_ties.argmax}}},
          {"drafts",
           {{"passes", result.drafts.passes},
            {"tokens", result.drafts.tokens},
            {"tokens_per_pass", rate(result.drafts.tokens, count(result.drafts.passes))},
            {"proposed", result.drafts.proposed},
            {"accepted", result.drafts.accepted}}},
          {"experts",
           {{"uses", experts.hits + experts.misses},
            {"reads", experts.reads},
            {"bytes_read", experts.bytes_read}}}};
}

/// Speeds, time to the first token, peak memory, and bytes read of experts, in one line.
std::string generate_summary(const inference::GenerateResult& result,
                             const inference::Model& model) {
  const inference::GenerateTimes& times = result.times;
  const inference::ExpertCounters experts = model.expert_counters();
  std::string text = fmt::format(
      "prefill {} tokens, {:.1f} tokens/s; decode {} tokens, {:.1f} tokens/s; first token after "
      "{:.2f} s; peak memory {}",
      times.prefill_tokens, rate(times.prefill_tokens, times.prefill_seconds), times.decode_tokens,
      rate(times.decode_tokens, times.decode_seconds), times.first_token_seconds,
      bytes_text(peak_memory()));
  if (result.answers.size() > 1) text += "; " + steps_text(result.steps);
  const inference::NearTies& near = result.near_ties;
  const shard::Topology& topology = model.rank().topology;
  if (const auto n = near.router + near.indexer + near.argmax;
      n > 0 && (topology.tp > 1 || topology.etp > 1)) {
    text += fmt::format("; {} choices near a tie (router {}, indexer {}, tokens {})", n,
                        near.router, near.indexer, near.argmax);
  }
  if (!result.drafts.proposed.empty()) text += drafts_text(result.drafts);
  if (!model.all_experts_resident()) {
    const std::size_t n_tokens = times.prefill_tokens + times.decode_tokens;
    text +=
        fmt::format("; experts on demand: {} uses, {} reads of {}, {} per token",
                    experts.hits + experts.misses, experts.reads, bytes_text(experts.bytes_read),
                    bytes_text(n_tokens == 0 ? 0 : experts.bytes_read / n_tokens));
  }
  return text;
}

/// A model, or a rank of one, opened as the flags say, within its share of their memory.
class GenerateSession {
 public:
  GenerateSession(const GenerateFlags& flags, const RunningRank& self)
      : flags_(flags),
        self_(self),
        threads_(self.share(threads_of(flags.threads), flags.threads != 0)),
        source_(shard::open_source(self.directory,
                                   {.open = {.threads = threads_}, .config = flags.config})),
        spec_(inference::model_spec(source_)) {
    if (!self.is_rank) shard::require_all_ranks(source_);
    if (!self.is_first()) return;
    std::vector<std::string> remarks = source_.remarks();
    if (source_.lacks_promised_mtp()) {
      remarks.emplace_back(
          "config.json promises layers for multi-token prediction (num_nextn_predict_layers) that "
          "are not there");
    }
    warn_of(flags.directory, remarks);
  }

  [[nodiscard]] const formats::Checkpoint& source() const { return source_; }
  /// Options of sampling and stopping, from files and flags.
  [[nodiscard]] inference::GenerateOptions options() const {
    const inference::GenerationConfig config =
        inference::read_generation_config(source_.directory(), source_.config());
    inference::GenerateOptions options;
    options.sampling = config.sampling;
    if (!config.do_sample) options.sampling.temperature = 0;
    if (flags_.temperature) options.sampling.temperature = static_cast<float>(*flags_.temperature);
    if (flags_.top_p) options.sampling.top_p = static_cast<float>(*flags_.top_p);
    if (flags_.top_k) options.sampling.top_k = *flags_.top_k;
    if (flags_.greedy) options.sampling.temperature = 0;
    options.sampling.seed = flags_.seed.value_or(0);
    options.max_new_tokens = flags_.max_new_tokens.value_or(config.max_new_tokens.value_or(512));
    options.eos = config.eos;
    options.kv_format = flags_.kv_format();
    options.kv_scales = kv_scales_;
    options.drafts = flags_.drafts;
    options.batch_tokens = flags_.batch_tokens;
    options.cache_tokens = cache_tokens_;
    return options;
  }
  /// Reads the weights. Throws kLimit unless caches for the longest of answers up to
  /// `final_lengths` fit with them.
  void open(std::span<const std::size_t> final_lengths) {
    const inference::Profile profile = flags_.chosen_profile();
    if (flags_.kv_format() == inference::KvFormat::kFp8Static)
      kv_scales_ = inference::read_static_scales(source_);
    const inference::RunMemory need =
        inference::run_memory(source_, profile, flags_.kv_format(), final_lengths, threads_,
                              flags_.drafts, flags_.batch_tokens);
    const inference::MemoryShare share =
        inference::share_memory(need, final_lengths, flags_.batch_tokens,
                                self_.share(flags_.memory_limit(), !flags_.mem_limit.empty()));
    cache_tokens_ = share.cache_tokens;
    const inference::ModelOptions options = {.profile = profile,
                                             .threads = threads_,
                                             .weight_limit = share.weights,
                                             .without_mtp = flags_.drafts == 0};
    model_ = std::make_unique<inference::Model>(source_, inference::rank_view(source_), self_.comm,
                                                options);
  }
  [[nodiscard]] const inference::Model& model() const { return *model_; }
  [[nodiscard]] const inference::ModelSpec& spec() const { return spec_; }

 private:
  const GenerateFlags& flags_;
  const RunningRank& self_;
  std::size_t threads_;
  formats::Checkpoint source_;
  inference::ModelSpec spec_;
  std::size_t cache_tokens_ = 0;
  std::vector<inference::StaticScales> kv_scales_;  // by layer, for fp8-static
  std::unique_ptr<inference::Model> model_;
};

constexpr std::size_t kContext = 8192;

std::atomic<int> n_interrupts = 0;

// A user who presses Ctrl-C again and again wants out, even if the turn is stuck.
void note_interrupt(int signal) {
  constexpr int kEnough = 3;
  if (++n_interrupts < kEnough) return;
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

bool turn_is_stopped() {
  return n_interrupts > 0;
}

void catch_interrupts() {
  struct sigaction action {};
  action.sa_handler = note_interrupt;  // without SA_RESTART: a read ends
  ::sigaction(SIGINT, &action, nullptr);
}

/// The conversation of --interactive, to its end; returns the exit code. Ctrl-C ends an answer, not
/// the program.
int run_chat(const GenerateFlags& flags, GenerateSession& session, const PromptReader& prompts) {
  const std::size_t asked = flags.context.value_or(kContext);
  const std::size_t context =
      session.spec().max_positions == 0 ? asked : std::min(asked, session.spec().max_positions);
  const std::size_t lengths[] = {context};
  session.open(lengths);
  inference::GenerateOptions options = session.options();
  options.stop_requested = turn_is_stopped;
  notes() << "/clear forgets the conversation, /exit ends it, Ctrl-C stops an answer\n";
  catch_interrupts();
  Json messages = prompts.opening();
  while (const auto line = cli::session().read_line()) {
    n_interrupts = 0;
    if (line->empty()) continue;
    if (*line == "/exit") break;
    if (*line == "/clear") {
      messages = prompts.opening();
      continue;
    }
    messages.push_back({{"role", "user"}, {"content", *line}});
    try {
      const auto encoded = [&] {
        const StopScope stop(turn_is_stopped, "the turn was read");
        return prompts.encode(messages, nullptr);
      };
      const std::vector<std::vector<std::int32_t>> ids = {encoded()};
      if (ids[0].size() >= context) {
        throw Error(ErrorCode::kLimit,
                    "the conversation has {} tokens, --context is {}; /clear begins a new one",
                    ids[0].size(), context);
      }
      inference::GenerateOptions turn = options;
      turn.max_new_tokens = std::min(turn.max_new_tokens, context - ids[0].size());
      AnswerPrinter printer(1, prompts.tokenizer(), false, options.eos);
      turn.on_token = [&](std::size_t prompt, std::int32_t token) {
        printer.on_token(prompt, token);
      };
      const inference::GenerateResult result = inference::generate(session.model(), ids, turn);
      printer.finish();
      messages.push_back(
          {{"role", "assistant"},
           {"content", prompts.tokenizer()->decode(result.answers[0].tokens, true)}});
    } catch (const Error& error) {
      // A message that cannot be answered is not part of the conversation.
      errors() << "error: " << error.what() << "\n";
      messages.erase(messages.size() - 1);
    }
  }
  return kExitDone;
}

/// The answers of one rank, or of the whole model; the first rank reads and prints.
int run_answers(const GenerateFlags& flags, const RunningRank& self) {
  if (flags.interactive && self.is_rank) {
    throw Error(ErrorCode::kUnsupported,
                "--interactive is for one process that sees slices as one model (--ranks joined, "
                "--mpi never)");
  }
  GenerateSession session(flags, self);
  std::optional<PromptReader> reader;
  if (self.is_first()) reader.emplace(flags, session.source());
  if (flags.interactive) return run_chat(flags, session, *reader);

  const std::vector<GivenPrompt> given = reader ? reader->read() : std::vector<GivenPrompt>();
  inference::Lists ids;
  for (const GivenPrompt& prompt : given) ids.push_back(prompt.ids);
  ids = broadcast(self.comm, {.group = inference::Group::kWorld, .name = "prompts"}, 0, ids);
  session.open(inference::final_lengths(session.spec(), ids, session.options().max_new_tokens));
  inference::GenerateOptions options = session.options();
  if (!flags.arrivals_file.empty()) {
    options.arrivals.resize(ids.size());  // read only on the first rank
    for (std::size_t i = 0; i < given.size(); ++i) options.arrivals[i] = *given[i].arrives;
  }
  options.stop_requested = stop_question();
  const inference::Tokenizer* tokenizer = reader ? reader->tokenizer() : nullptr;
  AnswerPrinter printer(ids.size(), tokenizer, flags.tokens.has_value(), options.eos);
  if (reader && flags.jsonl) {
    options.on_answer = [&](std::size_t i, const inference::Answer& answer) {
      write_data(answer_line(i, given[i], answer, tokenizer));
      out() << std::flush;
    };
  } else if (reader && !answer().is_json) {
    options.on_token = [&](std::size_t prompt, std::int32_t token) {
      printer.on_token(prompt, token);
    };
  }
  std::optional<StepLog> log;
  if (reader && !flags.log_file.empty()) {
    log.emplace(flags.log_file);
    options.on_step = [&](const inference::StepFigures& figures) {
      log->write(figures, self.is_rank ? self.comm.traffic() : inference::TrafficByCollective());
    };
  }
  const inference::GenerateResult result = inference::generate(session.model(), ids, options);
  if (!reader) return kExitDone;
  if (log) log->write(result.steps);
  if (answer().is_json) {
    answer().add(generate_json(result, given, tokenizer, session.model()));
  } else {
    if (!flags.jsonl) printer.finish();
    notes() << generate_summary(result, session.model()) << "\n";
  }
  if (self.is_rank) notes() << traffic_summary(self.comm.traffic()) << "\n";
  if (options.stop_requested && options.stop_requested())
    throw Error(ErrorCode::kInterrupted, "stopped before the end of the answer");
  return kExitDone;
}

int run_generate(const GenerateFlags& flags, const RankFlags& ranks) {
  flags.require_one_source();
  return run_ranks(ranks, flags.directory,
                   [&](const RunningRank& self) { return run_answers(flags, self); });
}

}  // namespace

std::function<int()> declare_generate(FlagTable& table) {
  auto flags = std::make_shared<GenerateFlags>();
  auto ranks = std::make_shared<RankFlags>();
  declare_generate_flags(table, *flags);
  declare_rank_flags(table, *ranks);
  table.footer =
      "Profiles: native computes each tensor as the target hardware of its scheme does, bf16 in "
      "BF16 as the models' own code does, f32 exactly.\n"
      "Examples:\n"
      "  ingot generate DeepSeek-V3.2-int8 --prompt 'What is the capital of Norway?' --greedy\n"
      "  ingot generate DeepSeek-V3.2-tp16 --prompts questions.txt --profile f32 --json\n"
      "  jq -c .question tasks.json | ingot generate DeepSeek-V3.2 --prompts - --jsonl --quiet\n"
      "  mpirun -n 16 ingot generate DeepSeek-V3.2-tp8-ep16 --prompt 'What is 2 + 2?'\n"
      "  ingot generate DeepSeek-V3.2 --interactive --mem-limit 200GB --kv-cache fp8\n"
      "  ingot generate DeepSeek-V3.2 --tokens 0,128803,19923,128804 --max-new-tokens 8";
  return [flags, ranks] { return run_generate(*flags, *ranks); };
}

}  // namespace ingot::cli
