#include "cli/report/generate_output.h"

#include <algorithm>
#include <iostream>

#include <fmt/format.h>

#include "cli/terminal/terminal.h"
#include "formats/base/figures.h"
#include "formats/json/json.h"

namespace ingot::cli {
namespace {

using formats::Json;

double rate(std::size_t n, double seconds) {
  return seconds > 0 ? static_cast<double>(n) / seconds : 0;
}

}  // namespace

AnswerPrinter::AnswerPrinter(std::size_t n_prompts, const inference::Tokenizer* tokenizer,
                             bool as_ids, std::vector<std::int32_t> eos)
    : eos_(std::move(eos)) {
  for (std::size_t i = 0; i < n_prompts; ++i) {
    Stream& stream = streams_.emplace_back();
    if (tokenizer != nullptr && !as_ids) stream.decoder.emplace_back(*tokenizer, true);
  }
}

void AnswerPrinter::on_token(std::size_t prompt, std::int32_t token) {
  Stream& stream = streams_[prompt];
  if (stream.decoder.empty()) {
    stream.waiting += fmt::format("{}{}", stream.any ? " " : "", token);
  } else {
    stream.waiting += stream.decoder[0].push(token);
  }
  stream.any = true;
  if (std::ranges::find(eos_, token) != eos_.end()) {
    if (!stream.decoder.empty()) stream.waiting += stream.decoder[0].finish();
    stream.waiting += "\n";
    stream.ended = true;
  }
  flush();
}

void AnswerPrinter::flush() {
  while (current_ < streams_.size()) {
    Stream& stream = streams_[current_];
    std::cout << stream.waiting;
    stream.waiting.clear();
    if (!stream.ended) break;
    ++current_;
    if (current_ < streams_.size()) std::cout << "\n";
  }
  std::cout.flush();
}

void AnswerPrinter::finish() {
  for (Stream& stream : streams_) {
    if (stream.ended) continue;
    if (!stream.decoder.empty()) stream.waiting += stream.decoder[0].finish();
    stream.waiting += "\n";
    stream.ended = true;
  }
  flush();
}

Json generate_json(const inference::GenerateResult& result, const inference::Tokenizer* tokenizer,
                   const inference::Model& model) {
  Json sequences = Json::array();
  for (const inference::Answer& answer : result.answers) {
    Json sequence = {{"prompt_ids", answer.prompt}, {"generated_ids", answer.tokens}};
    if (tokenizer != nullptr) {
      sequence["text"] = tokenizer->decode(answer.tokens, /*skip_special=*/true);
    }
    sequence["stop"] = std::string(inference::stop_reason_name(answer.stop));
    sequences.push_back(std::move(sequence));
  }
  const inference::GenerateTimes& times = result.times;
  const inference::ExpertCounters experts = model.expert_counters();
  return {{"schema", 1},
          {"command", "generate"},
          {"sequences", std::move(sequences)},
          {"prefill",
           {{"tokens", times.prefill_tokens},
            {"tokens_per_second", rate(times.prefill_tokens, times.prefill_seconds)}}},
          {"decode",
           {{"tokens", times.decode_tokens},
            {"tokens_per_second", rate(times.decode_tokens, times.decode_seconds)}}},
          {"seconds_to_first_token", times.first_token_seconds},
          {"peak_memory_bytes", peak_memory()},
          {"experts",
           {{"uses", experts.hits + experts.misses},
            {"reads", experts.reads},
            {"bytes_read", experts.bytes_read}}}};
}

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
  if (!model.all_experts_resident()) {
    const std::size_t n_tokens = times.prefill_tokens + times.decode_tokens;
    text +=
        fmt::format("; experts on demand: {} uses, {} reads of {}, {} per token",
                    experts.hits + experts.misses, experts.reads, bytes_text(experts.bytes_read),
                    bytes_text(n_tokens == 0 ? 0 : experts.bytes_read / n_tokens));
  }
  return text;
}

}  // namespace ingot::cli
