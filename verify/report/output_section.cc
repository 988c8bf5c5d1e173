#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include "formats/base/printable.h"
#include "formats/base/words.h"
#include "report/figures.h"
#include "report/rows.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

constexpr std::size_t kPromptBytes = 400;  // shown of a prompt
constexpr std::size_t kPromptIds = 64;

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

// The answers to one prompt, that of the source first. With only one output it is marked where the
// two differ.
std::string texts_html(const std::vector<std::string_view>& titles,
                       const std::vector<const GreedyPrompt*>& outputs) {
  const std::string source = valid_text(outputs.front()->source_text);
  std::vector<Answer> answers = {{titles.front(), html_text(source)}};
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const std::string output = valid_text(outputs[i]->output_text);
    const std::size_t at = parting(source, output);
    const bool is_same = source == output;
    if (!is_same && outputs.size() == 1) answers.front().html = marked(source, at);
    answers.push_back({titles[i + 1], is_same ? html_text(output) : marked(output, at)});
  }
  return answers_html(answers);
}

std::string ids_html(const std::vector<std::string_view>& titles,
                     const std::vector<const GreedyPrompt*>& outputs) {
  const GreedyPrompt& first = *outputs.front();
  std::vector<Answer> answers;
  answers.push_back({titles.front(), outputs.size() == 1
                                         ? ids_text(first.source, first.first_difference)
                                         : ids_text(first.source, std::nullopt)});
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    answers.push_back({titles[i + 1], ids_text(outputs[i]->output, outputs[i]->first_difference)});
  }
  return answers_html(answers);
}

std::string asked_html(const Prompt& prompt) {
  const std::string text = valid_text(prompt.text);
  if (text.empty()) {
    const auto shown = static_cast<std::ptrdiff_t>(std::min(prompt.ids.size(), kPromptIds));
    return ids_text({prompt.ids.begin(), prompt.ids.begin() + shown}, std::nullopt) +
           (prompt.ids.size() > kPromptIds ? " …" : "");
  }
  if (text.size() <= kPromptBytes) return html_text(text);
  std::size_t end = kPromptBytes;
  while (continues_character(text[end])) --end;
  return html_text(text.substr(0, end)) + " …";
}

Style style_of(GreedyOutcome outcome) {
  if (outcome == GreedyOutcome::kEqual) return Style::kGood;
  return outcome == GreedyOutcome::kDifferent ? Style::kBad : Style::kMild;
}

std::string difference_text(const GreedyPrompt& prompt) {
  return fmt::format("at token {}: the source's two likeliest are {} apart there, {} is the limit",
                     *prompt.first_difference, short_text(prompt.gap), short_text(prompt.limit));
}

Drawing answers_of(const GreedyReport& greedy) {
  std::string html;
  for (std::size_t i = 0; i < greedy.prompts.size(); ++i) {
    html += prompt_html(i + 1, {"source", "output"}, {&greedy.prompts[i]});
  }
  return {html};
}

Remarks differences_of(const GreedyReport& greedy) {
  Remarks remarks;
  for (std::size_t i = 0; i < greedy.prompts.size(); ++i) {
    const GreedyPrompt& prompt = greedy.prompts[i];
    if (!prompt.first_difference) continue;
    remarks.push_back({.style = style_of(prompt.outcome),
                       .kind = std::string(greedy_outcome_name(prompt.outcome)),
                       .name = fmt::format("prompt {}", i + 1),
                       .text = difference_text(prompt)});
  }
  return remarks;
}

// `source: router 2, indexer 0, tokens 1`; empty where no choice was near a tie.
std::string near_ties_text(std::string_view side, const inference::NearTies& near) {
  if (near == inference::NearTies()) return {};
  return fmt::format("{}: router {}, indexer {}, tokens {}", side, near.router, near.indexer,
                     near.argmax);
}

// Counts of choices near a tie, which sums in another order may make otherwise; empty where there
// are none.
std::string near_ties_text(const GreedyReport& greedy) {
  const std::string source = near_ties_text("source", greedy.source_near_ties);
  const std::string output = near_ties_text("output", greedy.output_near_ties);
  if (source.empty() && output.empty()) return {};
  return fmt::format("choices near a tie, which sums in another order may make otherwise; {}{}{}",
                     source, source.empty() || output.empty() ? "" : "; ", output);
}

std::string likelihood_text(double nll) {
  return fmt::format("{:.5f}", nll);
}

Table logits_table(const LayersReport& layers) {
  Json rows = Json::array();
  const auto add = [&](std::string_view title, const LogitAgreement& logits) {
    rows.push_back(row_of(logits));
    rows.back()["title"] = title;
  };
  if (layers.logits.tokens > 0) add("next token", layers.logits);
  if (layers.mtp_logits && layers.mtp_logits->tokens > 0) add("MTP", *layers.mtp_logits);
  Table table = table_of(rows, {{"logits", "title", in_style<Style::kLabel>},
                                {"mean KL, nats", "mean_kl", short_text},
                                {"worst", "worst_kl", short_text},
                                {"worst at", "", worst_place},
                                {"same top 1", "top1", percent_text},
                                {"top 5 shared", "top5", percent_text},
                                {"max. error", "max_error", short_text},
                                {"NLL source", "source_nll", likelihood_text},
                                {"NLL output", "output_nll", likelihood_text}});
  table.least_rows = 2;
  return table;
}

std::string draft_text(const DraftReport& draft) {
  std::string line = fmt::format(
      "first drafts accepted: {} of the source's, {} of the output's, of {} on {}; lost {:.2f} "
      "points",
      percent_text(draft.source_acceptance()), percent_text(draft.output_acceptance()),
      count_text(draft.tokens), draft.of_given_text ? "the text" : "the source's answers",
      draft.loss());
  if (draft.interval)
    line += fmt::format(" (95%: {:.2f} to {:.2f})", draft.interval->low, draft.interval->high);
  return line;
}

std::string between_text(const std::optional<Interval>& interval, const auto& text) {
  return interval ? fmt::format(" (95% {} to {})", text(interval->low), text(interval->high)) : "";
}

// Figures of the text with their intervals, which a text of one document does not give.
std::string text_line(const TextReport& text) {
  const TextFigure nll = nll_of(text.output);
  const auto perplexity = [](double of) { return fmt::format("{:.5f}", std::exp(of)); };
  const auto change = [](double of) { return fmt::format("{:+.3f}%", 100 * std::expm1(of)); };
  std::string line =
      fmt::format("perplexity {}{}", perplexity(nll.mean), between_text(nll.interval, perplexity));
  if (text.source) {
    const TextFigure ratio = log_ratio_of(text), kl = kl_of(text);
    line += fmt::format(", source {:.5f}, change {}{}; KL {} nats{}", text.source->perplexity(),
                        change(ratio.mean), between_text(ratio.interval, change),
                        short_text(kl.mean), between_text(kl.interval, short_text));
  }
  line += fmt::format("; on {} tokens of {} documents", count_text(text.output.tokens),
                      count_text(text.documents));
  if (text.documents < text.output.documents)
    line += fmt::format(" in {} context windows", count_text(text.output.documents));
  return line + (nll.interval ? fmt::format(", bootstrap over documents, {} draws",
                                            count_text(kBootstrapDraws))
                              : ", one document gives no interval");
}

}  // namespace

std::string answers_html(const std::vector<Answer>& answers) {
  std::string html = "<div class=\"pair\">\n";
  for (const Answer& answer : answers) {
    html += fmt::format("<div><h4>{}</h4><p class=\"answer\">{}</p></div>\n", answer.title,
                        answer.html);
  }
  return html + "</div>\n";
}

std::string prompt_html(std::size_t number, const std::vector<std::string_view>& titles,
                        const std::vector<const GreedyPrompt*>& outputs) {
  std::string outcomes;
  bool has_text = !outputs.front()->source_text.empty();
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const GreedyPrompt& prompt = *outputs[i];
    has_text = has_text || !prompt.output_text.empty();
    outcomes += fmt::format(
        "<p>{}{}{}</p>\n", outputs.size() == 1 ? "" : fmt::format("{}: ", titles[i + 1]),
        html_badge(style_of(prompt.outcome), greedy_outcome_name(prompt.outcome)),
        prompt.first_difference ? fmt::format(" {}", html_text(difference_text(prompt))) : "");
  }
  std::string answers = ids_html(titles, outputs);
  if (has_text) {
    answers = fmt::format("{}<details><summary>Token ids</summary>\n{}</details>\n",
                          texts_html(titles, outputs), answers);
  }
  return fmt::format("<article>\n<p class=\"prompt\"><b>{}</b> {}</p>\n{}{}</article>\n", number,
                     asked_html(outputs.front()->prompt), outcomes, answers);
}

void add_output_section(const Report& report, Form form, Sections& sections) {
  Section section{"outputs", "Outputs", {}};
  if (report.layers) section.add(logits_table(*report.layers));
  if (report.text) section.add(Paragraph{text_line(*report.text)});
  if (report.greedy) {
    const GreedyReport& greedy = *report.greedy;
    std::string text =
        fmt::format("greedy answers to {} prompts: {} equal, {} inconclusive, {} different",
                    greedy.prompts.size(), greedy.equal, greedy.inconclusive, greedy.different);
    if (const std::string near = near_ties_text(greedy); !near.empty()) text += "; " + near;
    section.add(Paragraph{std::move(text)});
    if (form == Form::kPage)
      section.add(answers_of(greedy));
    else
      section.add(differences_of(greedy));
  }
  if (report.draft) section.add(Paragraph{draft_text(*report.draft)});
  sections.push_back(std::move(section));
}

}  // namespace ingot::verify
