// Two outputs in pairs, layer by layer: as a table, as curves, and as a map of which is closer.
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>

#include <fmt/format.h>

#include "report/figures.h"
#include "report/rows.h"
#include "report/svg.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

constexpr double kDrawingHeight = 240;

// A layer, with its results of the levels that ran.
struct LayerRow {
  std::string title;
  std::optional<PairedGroup> weights;
  std::optional<PairedLayer> states;
};

double apart(const LayerRow& row) {
  if (row.states) return std::abs(row.states->a->isolated.mean - row.states->b->isolated.mean);
  return row.weights ? std::abs(row.weights->difference_db()) : 0;
}

std::vector<LayerRow> layer_rows(const Comparison& comparison,
                                 const std::vector<PairedTensor>& tensors) {
  std::map<std::size_t, LayerRow> rows;
  for (PairedGroup& group : paired_groups(tensors, {.by_layer = true})) {
    LayerRow& row = rows[*group.layer];
    row.title = fmt::format("layer {}", *group.layer);
    row.weights = std::move(group);
  }
  for (const PairedLayer& layer : paired_layers(*comparison.a, comparison.b)) {
    LayerRow& row = rows[layer.a->layer];
    row.title = layer_title(*layer.a);
    row.states = layer;
  }
  std::vector<LayerRow> in_order;
  for (auto& [unused, row] : rows) in_order.push_back(std::move(row));
  return in_order;
}

Table layers_table(std::vector<LayerRow> layers, Form form, std::size_t n_worst) {
  const bool is_page = form == Form::kPage;
  if (!is_page) {
    std::stable_sort(layers.begin(), layers.end(),
                     [](const LayerRow& a, const LayerRow& b) { return apart(a) > apart(b); });
    layers.resize(std::min(layers.size(), n_worst));
  }
  bool has_weights = false, has_states = false;
  Json rows = Json::array();
  for (const LayerRow& layer : layers) {
    has_weights = has_weights || layer.weights;
    has_states = has_states || layer.states;
    Json& row = rows.emplace_back(Json{{"title", layer.title}});
    if (layer.weights) row["weights"] = row_of(*layer.weights);
    if (layer.states)
      row.update({{"a", row_of(*layer.states->a)}, {"b", row_of(*layer.states->b)}});
  }
  Table table = table_of(rows, {{is_page ? "" : "layers", "title"},
                                {"SQNR dB A", "weights.a.sqnr_db", decibel_text, has_weights},
                                {"B", "weights.b.sqnr_db", decibel_text, has_weights},
                                {"B − A", "weights.difference_db", signed_decibels, has_weights},
                                {"isolated A", "a.isolated.mean", cosine_text, has_states},
                                {"B", "b.isolated.mean", cosine_text, has_states},
                                {"accumulated A", "a.accumulated.mean", cosine_text, has_states},
                                {"B", "b.accumulated.mean", cosine_text, has_states},
                                {"experts A", "a.router_overlap", percent_text, has_states},
                                {"B", "b.router_overlap", percent_text, has_states}});
  if (is_page) table.summary = "All figures";
  return table;
}

Drawing draw_states(const Comparison& comparison, std::string_view what,
                    double (*cosine)(const LayerAgreement&)) {
  const std::vector<LayerAgreement>& a = comparison.a->layers->layers;
  const std::vector<LayerAgreement>& b = comparison.b.layers->layers;
  std::vector<double> cosines;
  for (const std::vector<LayerAgreement>* side : {&a, &b})
    for (const LayerAgreement& layer : *side) cosines.push_back(cosine(layer));
  const DecadeAxis axis = decade_axis(cosines);
  LayerDrawing drawing(a, kDrawingHeight, what, kDistanceTitle);
  drawing.draw_decades(axis);
  drawing.draw_layers();
  // By place: the same layers, but for an MTP layer that one side may lack.
  const auto draw = [&](Curve named, const std::vector<LayerAgreement>& layers) {
    Curve curve = cosine_curve(std::move(named), layers, axis, cosine);
    curve.value = [&layers, cosine](std::size_t i) {
      return i < layers.size() ? std::optional(cosine(layers[i])) : std::nullopt;
    };
    drawing.draw(curve);
  };
  draw({.name = "A", .line = "a-line", .mark = "a"}, a);
  draw({.name = "B", .line = "b-line", .mark = "b"}, b);
  return {fmt::format("<p class=\"legend\">{}: <span class=\"key a-key\"></span>A <span "
                      "class=\"key b-key\"></span>B</p>\n",
                      html_text(what)) +
          drawing.finish()};
}

// Colours of the map, by the SQNR of B less that of A: from A far ahead to B far ahead.
struct DifferenceStep {
  double most;  // dB
  std::string_view style, swatch, word;
};
constexpr std::array kDifferenceSteps = {
    DifferenceStep{-10, "da2", "kda2", "A by over 10"},
    DifferenceStep{-1, "da1", "kda1", "A by 1–10"},
    DifferenceStep{-1e-12, "da0", "kda0", "A by less"},
    DifferenceStep{1e-12, "same", "k-same", "equal"},
    DifferenceStep{1, "db0", "kdb0", "B by less"},
    DifferenceStep{10, "db1", "kdb1", "B by 1–10"},
    DifferenceStep{HUGE_VAL, "db2", "kdb2", "B by over 10"},
};

}  // namespace

std::string signed_decibels(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "B exact" : "A exact";
  return fmt::format("{:+.2f}", value);
}

Section paired_layers_section(const Comparison& comparison,
                              const std::vector<PairedTensor>& tensors, Form form,
                              std::size_t n_worst) {
  Section section{"layers", "Layer by layer", {}};
  const bool has_states =
      comparison.a->layers && comparison.b.layers && !comparison.a->layers->layers.empty();
  if (form == Form::kPage && has_states) {
    section.add(draw_states(comparison, "isolated, mean over tokens",
                            [](const LayerAgreement& layer) { return layer.isolated.mean; }));
    section.add(draw_states(comparison, "accumulated, mean over tokens",
                            [](const LayerAgreement& layer) { return layer.accumulated.mean; }));
  }
  section.add(layers_table(layer_rows(comparison, tensors), form, n_worst));
  if (has_states) {
    section.note(fmt::format(
        "{} tokens of {} prompts; reference in {}, A and B in {}",
        count_text(comparison.a->layers->tokens), count_text(comparison.a->layers->prompts),
        comparison.a->layers->source_profile, comparison.a->layers->output_profile));
  }
  return section;
}

Section difference_map_section(const std::vector<PairedTensor>& tensors) {
  Section section{"heatmap", "Weights by layer and role", {}};
  std::vector<HeatCell> cells;
  for (const PairedGroup& group : paired_groups(tensors, {.by_role = true, .by_layer = true})) {
    const double difference = group.difference_db();
    const auto step = std::find_if(kDifferenceSteps.begin(), kDifferenceSteps.end() - 1,
                                   [&](const DifferenceStep& at) { return difference <= at.most; });
    cells.push_back(
        {.layer = *group.layer,
         .role = group.role,
         .style = std::string(step->style),
         .title = fmt::format("layer {}, {}: A {} dB, B {} dB", *group.layer, group.role,
                              decibel_text(group.a.sqnr_db()), decibel_text(group.b.sqnr_db()))});
  }
  if (cells.empty()) return section;
  std::string legend = "<p class=\"legend\">Closer, SQNR in dB: ";
  for (const DifferenceStep& step : kDifferenceSteps) legend += swatch_html(step.swatch, step.word);
  section.add(Drawing{legend + "</p>\n" +
                      heat_map_html(cells, "which output is closer by layer and role")});
  return section;
}

}  // namespace ingot::verify
