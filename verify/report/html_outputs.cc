#include <algorithm>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"

namespace ingot::verify {
namespace {

constexpr std::size_t kPromptBytes = 400;  // shown of a prompt
constexpr std::size_t kPromptIds = 64;

bool continues_character(char c) {
  return (static_cast<unsigned char>(c) & 0xC0U) == 0x80U;
}

// Where two texts part, at the start of a character.
std::size_t parting(std::string_view a, std::string_view b) {
  const auto [at, other] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  auto n = static_cast<std::size_t>(at - a.begin());
  while (n > 0 && n < a.size() && continues_character(a[n])) --n;
  while (n > 0 && n < b.size() && continues_character(b[n])) --n;
  return n;
}

// The text with the word that starts at `at` marked; an end there is marked as such.
std::string marked(const std::string& text, std::size_t at) {
  if (at >= text.size()) return html_text(text) + "<mark>(ends)</mark>";
  std::size_t end = text.find_first_of(" \n\t", at + 1);
  end = std::min({end, text.size(), at + 24});
  while (end < text.size() && continues_character(text[end])) ++end;
  return fmt::format("{}<mark>{}</mark>{}", html_text(text.substr(0, at)),
                     html_text(text.substr(at, end - at)), html_text(text.substr(end)));
}

std::string ids_text(const std::vector<std::int32_t>& ids, std::optional<std::size_t> mark) {
  std::string text;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const bool is_marked = mark && *mark == i;
    text += fmt::format("{}{}{}{}", i == 0 ? "" : " ", is_marked ? "<mark>" : "", ids[i],
                        is_marked ? "</mark>" : "");
  }
  if (mark && *mark >= ids.size()) text += " <mark>(ends)</mark>";
  return text;
}

std::string answer(std::string_view side, const std::string& html) {
  return fmt::format("<div><h4>{}</h4><p class=\"answer\">{}</p></div>\n", side, html);
}

std::string answers(const GreedyPrompt& prompt) {
  const std::string source = printable_text(prompt.source_text);
  const std::string output = printable_text(prompt.output_text);
  const std::string ids = answer("source", ids_text(prompt.source, prompt.first_difference)) +
                          answer("output", ids_text(prompt.output, prompt.first_difference));
  if (source.empty() && output.empty()) return fmt::format("<div class=\"pair\">\n{}</div>\n", ids);
  const bool is_same = source == output;
  const std::size_t at = parting(source, output);
  return fmt::format(
      "<div class=\"pair\">\n{}{}</div>\n<details><summary>Token ids</summary>\n"
      "<div class=\"pair\">\n{}</div>\n</details>\n",
      answer("source", is_same ? html_text(source) : marked(source, at)),
      answer("output", is_same ? html_text(output) : marked(output, at)), ids);
}

std::string prompt_text(const Prompt& prompt) {
  std::string text = printable_text(prompt.text);
  if (text.empty()) {
    const std::size_t shown = std::min(prompt.ids.size(), kPromptIds);
    text = ids_text({prompt.ids.begin(), prompt.ids.begin() + static_cast<std::ptrdiff_t>(shown)},
                    std::nullopt);
    if (shown < prompt.ids.size()) text += " …";
    return text;
  }
  if (text.size() <= kPromptBytes) return html_text(text);
  std::size_t end = kPromptBytes;
  while (continues_character(text[end])) --end;
  return html_text(text.substr(0, end)) + " …";
}

std::string outcome_text(const GreedyPrompt& prompt) {
  const std::string_view kind = prompt.outcome == GreedyOutcome::kEqual       ? "good"
                                : prompt.outcome == GreedyOutcome::kDifferent ? "bad"
                                                                              : "mild";
  std::string text = html_badge(kind, greedy_outcome_name(prompt.outcome));
  if (prompt.first_difference) {
    text += fmt::format(
        " at token {}: the source's two likeliest are {} apart there, {} is the "
        "limit",
        *prompt.first_difference, short_text(prompt.gap), short_text(prompt.limit));
  }
  return text;
}

std::string greedy_part(const GreedyReport& greedy) {
  std::string text = fmt::format(
      "<h3>What both answer</h3>\n<p>{} prompts: {} equal, {} inconclusive, {} different.</p>\n",
      greedy.prompts.size(), greedy.equal, greedy.inconclusive, greedy.different);
  for (std::size_t i = 0; i < greedy.prompts.size(); ++i) {
    const GreedyPrompt& prompt = greedy.prompts[i];
    text +=
        fmt::format("<article>\n<p class=\"prompt\"><b>{}</b> {}</p>\n<p>{}</p>\n{}</article>\n",
                    i + 1, prompt_text(prompt.prompt), outcome_text(prompt), answers(prompt));
  }
  return text;
}

std::vector<std::string> logits_row(std::string_view name, const LogitAgreement& logits) {
  return {fmt::format("<b>{}</b>", name),
          short_text(logits.mean_kl),
          fmt::format("{} <small>prompt {}, token {}</small>", short_text(logits.worst_kl),
                      logits.worst_prompt + 1, logits.worst_token),
          fmt::format("{:.2f}%", 100 * logits.top1),
          fmt::format("{:.2f}%", 100 * logits.top5),
          short_text(logits.max_error),
          fmt::format("{:.5f}", logits.source_nll),
          fmt::format("{:.5f}", logits.output_nll)};
}

std::string logits_part(const LayersReport& layers) {
  std::vector<std::vector<std::string>> rows;
  if (layers.logits.tokens > 0) rows.push_back(logits_row("next token", layers.logits));
  if (layers.mtp_logits) rows.push_back(logits_row("MTP", *layers.mtp_logits));
  if (rows.empty()) return {};
  return html_table({{.title = "logits"},
                     {.title = "mean KL, nats", .is_number = true},
                     {.title = "worst", .is_number = true},
                     {.title = "same top 1", .is_number = true},
                     {.title = "top 5 shared", .is_number = true},
                     {.title = "max. error", .is_number = true},
                     {.title = "NLL source", .is_number = true},
                     {.title = "NLL output", .is_number = true}},
                    rows);
}

std::string perplexity_part(const TextReport& text) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](std::string_view side, const Likelihood& likelihood) {
    rows.push_back({fmt::format("<b>{}</b>", side), fmt::format("{:.5f}", likelihood.perplexity()),
                    count_text(likelihood.documents), count_text(likelihood.tokens)});
  };
  if (text.source) add("source", *text.source);
  add("output", text.output);
  std::string body = html_table({{.title = "text"},
                                 {.title = "perplexity", .is_number = true},
                                 {.title = "windows", .is_number = true},
                                 {.title = "tokens", .is_number = true}},
                                rows);
  if (text.documents < text.output.documents) {
    body += html_note(fmt::format("Documents: {}. Longer ones were read in windows of the context.",
                                  count_text(text.documents)));
  }
  return body;
}

}  // namespace

std::string html_outputs(const Report& report) {
  std::string body;
  if (report.layers) body += logits_part(*report.layers);
  if (report.text) body += perplexity_part(*report.text);
  if (report.greedy) body += greedy_part(*report.greedy);
  return html_section("outputs", "Outputs", body);
}

}  // namespace ingot::verify
