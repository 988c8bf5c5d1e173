#include <algorithm>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "verify/report/sections.h"

namespace ingot::verify {
namespace {

std::string overlap_text(const std::optional<double>& overlap) {
  return overlap ? percent_text(*overlap) : "–";
}

// A page has the layers in order and folded away, other forms those with the least cosine.
std::vector<LayerAgreement> shown_layers(const LayersReport& layers, Form form,
                                         std::size_t n_worst) {
  std::vector<LayerAgreement> shown = layers.layers;
  if (form == Form::kPage) return shown;
  std::stable_sort(shown.begin(), shown.end(), [](const auto& a, const auto& b) {
    return !(a.isolated.mean >= b.isolated.mean) &&
           b.isolated.mean == b.isolated.mean;  // NaN first
  });
  shown.resize(std::min(shown.size(), n_worst));
  return shown;
}

Table layer_table(const LayersReport& layers, Form form, std::size_t n_worst) {
  const bool is_page = form == Form::kPage;
  Table table{
      .columns = {is_page ? "" : "worst layers", number("isolated mean"), number("median"),
                  number("worst"), "worst at", number("rel. error"), number("accumulated mean"),
                  number("worst"), number("experts"), number("positions")},
      .summary = is_page ? "All figures" : ""};
  for (const LayerAgreement& layer : shown_layers(layers, form, n_worst)) {
    const Similarity& isolated = layer.isolated;
    table.rows.push_back(
        {layer_title(layer), cosine_text(isolated.mean), cosine_text(isolated.median),
         cosine_text(isolated.worst),
         fmt::format("prompt {}, token {}", isolated.worst_prompt + 1, isolated.worst_token),
         short_text(isolated.relative_error), cosine_text(layer.accumulated.mean),
         cosine_text(layer.accumulated.worst), overlap_text(layer.router_overlap),
         overlap_text(layer.indexer_overlap)});
  }
  if (!is_page) table.keep({0, 1, 3, 6, 7, 8, 9});
  return table;
}

}  // namespace

std::string layer_title(const LayerAgreement& layer) {
  return fmt::format("{}layer {}", layer.is_mtp ? "MTP " : "", layer.layer);
}

void add_layer_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections) {
  if (!report.layers || report.layers->layers.empty()) return;
  const LayersReport& layers = *report.layers;
  Section section{"layers", "Hidden states, layer by layer", {}};
  const auto note = [&](std::string text) {
    section.blocks.push_back(Paragraph{std::move(text), true});
  };
  const std::string inputs =
      fmt::format("{} tokens of {} prompts; source in {}, output in {}", count_text(layers.tokens),
                  count_text(layers.prompts), layers.source_profile, layers.output_profile);
  if (form == Form::kPage) {
    section.blocks.push_back(draw_hidden_states(report));
    note(inputs +
         ". Isolated: both are given the source's hidden state, so a peak is that layer's own. "
         "Accumulated: each continues its own stream.");
  }
  section.blocks.push_back(layer_table(layers, form, n_worst));
  if (form != Form::kPage) {
    note(fmt::format("{}; accumulated cosine after the last layer {}", inputs,
                     cosine_text(layers.layers.back().accumulated.mean)));
    if (const auto bad = first_bad_layer(report))
      note(fmt::format("layer {} is the first below its gate", *bad));
  }
  sections.push_back(std::move(section));
  const bool has_overlaps = std::any_of(
      layers.layers.begin(), layers.layers.end(),
      [](const LayerAgreement& layer) { return layer.router_overlap || layer.indexer_overlap; });
  if (form != Form::kPage || !has_overlaps) return;
  sections.push_back(
      {"router",
       "Agreement of routers",
       {draw_overlaps(layers),
        Paragraph{"The part of what the source chooses that the output chooses too, both "
                  "given the source's hidden state; mean over tokens.",
                  true}}});
}

}  // namespace ingot::verify
