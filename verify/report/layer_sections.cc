#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "report/document.h"
#include "report/figures.h"
#include "report/rows.h"
#include "verify/report/sections.h"

namespace ingot::verify {

using formats::Json;

namespace {

constexpr double kDrawingTop = 14, kDrawingBottom = 44;
constexpr std::size_t kMostTicks = 21;
constexpr double kTickRoom = 28;  // between "60" and "MTP"
constexpr double kFloor = 1e-9;   // 1 - cosine below it is noise of sums

}  // namespace

double DecadeAxis::part(double cosine) const {
  const double decade = std::log10(std::max(1 - cosine, std::pow(10.0, low)));
  return std::clamp((decade - low) / (high - low), 0.0, 1.0);
}

DecadeAxis decade_axis(std::span<const double> cosines) {
  double least = 1, most = kFloor;
  for (const double cosine : cosines) {
    if (!std::isfinite(cosine)) continue;
    const double distance = std::clamp(1 - cosine, kFloor, 2.0);
    least = std::min(least, distance);
    most = std::max(most, distance);
  }
  // A hair's breadth off, so that a value on a decade does not open the next.
  DecadeAxis axis{.low = static_cast<int>(std::floor(std::log10(least) + 1e-9)),
                  .high = static_cast<int>(std::ceil(std::log10(most) - 1e-9))};
  if (axis.high <= axis.low) axis.high = axis.low + 1;
  return axis;
}

LayerDrawing::LayerDrawing(std::span<const LayerAgreement> layers, double height,
                           std::string_view label, std::string_view title)
    : layers_(layers), height_(height), svg_(kWidth, height, label, true) {
  svg_.vertical_text({14, (y(0) + y(1)) / 2}, "mid soft", title);
}

// Half a step of room at both ends, so that a single layer is in the middle.
double LayerDrawing::x(std::size_t index) const {
  const auto count = static_cast<double>(layers_.size());
  return kLeft + (kRight - kLeft) * (static_cast<double>(index) + 0.5) / count;
}

double LayerDrawing::y(double part) const {
  return height_ - kDrawingBottom - part * (height_ - kDrawingBottom - kDrawingTop);
}

void LayerDrawing::draw_tick(double part, std::string_view text) {
  svg_.line({kLeft, y(part)}, {kRight, y(part)}, "grid");
  svg_.text({kLeft - 7, y(part) + 4}, "end", text);
}

void LayerDrawing::draw_decades(const DecadeAxis& axis) {
  for (int decade = axis.low; decade <= axis.high; ++decade) {
    draw_tick(static_cast<double>(decade - axis.low) / (axis.high - axis.low),
              power_of_ten(decade));
  }
}

void LayerDrawing::draw_layers() {
  svg_.line({kLeft, y(0)}, {kRight, y(0)}, "axis");
  std::vector<std::size_t> ticks = spread_ticks(layers_.size(), kMostTicks);
  if (!ticks.empty() && layers_.back().is_mtp) {
    const std::size_t last = layers_.size() - 1;
    while (!ticks.empty() && x(last) - x(ticks.back()) < kTickRoom) ticks.pop_back();
    ticks.push_back(last);
  }
  for (const std::size_t index : ticks) {
    const LayerAgreement& layer = layers_[index];
    svg_.line({x(index), y(0)}, {x(index), y(0) + 4}, "axis");
    svg_.text({x(index), y(0) + 17}, "mid", layer.is_mtp ? "MTP" : std::to_string(layer.layer));
  }
  svg_.text({(kLeft + kRight) / 2, height_ - 6}, "mid soft", "layer");
}

void LayerDrawing::draw(const Curve& curve) {
  std::vector<SvgPoint> run;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::optional<double> value = curve.value(i);
    if (!value) continue;
    if (std::isfinite(*value)) {
      run.push_back({x(i), y(curve.part(*value))});
    } else {
      svg_.polyline(std::exchange(run, {}), curve.line);
    }
  }
  svg_.polyline(run, curve.line);
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    const std::optional<double> value = curve.value(i);
    if (!value) continue;
    const std::string title =
        fmt::format("{}, {}: {}", layer_title(layers_[i]), curve.name, curve.text(*value));
    if (!std::isfinite(*value)) {
      svg_.diamond({x(i), y(1)}, 6, "fault", title);
    } else if (curve.mark == "b") {
      svg_.diamond({x(i), y(curve.part(*value))}, curve.radius + 1, curve.mark, title);
    } else {
      svg_.circle({x(i), y(curve.part(*value))}, curve.radius, curve.mark, title);
    }
  }
}

std::string LayerDrawing::finish() const {
  return html_scroll(svg_.finish());
}

Curve cosine_curve(Curve named, std::span<const LayerAgreement> layers, const DecadeAxis& axis,
                   double (*cosine)(const LayerAgreement&)) {
  named.radius = layers.size() > 40 ? 2.4 : 3.2;
  named.value = [layers, cosine](std::size_t i) { return cosine(layers[i]); };
  named.part = [&axis](double value) { return axis.part(value); };
  named.text = [](double value) { return "cosine " + cosine_text(value); };
  return named;
}

namespace {

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

std::string layer_name(const Json& row) {
  return layer_title({.layer = row.at("layer"), .is_mtp = row.at("mtp")});
}

Table layer_table(const LayersReport& layers, Form form, std::size_t n_worst) {
  const bool is_page = form == Form::kPage;
  Table table = table_of(json_rows(shown_layers(layers, form, n_worst)),
                         {{is_page ? "" : "worst layers", "", layer_name},
                          {"isolated mean", "isolated.mean", cosine_text},
                          {"median", "isolated.median", cosine_text, is_page},
                          {"worst", "isolated.worst", cosine_text},
                          {"worst at", "isolated", worst_place, is_page},
                          {"rel. error", "isolated.relative_error", short_text, is_page},
                          {"accumulated mean", "accumulated.mean", cosine_text},
                          {"worst", "accumulated.worst", cosine_text},
                          {"experts", "router_overlap", percent_text},
                          {"positions", "indexer_overlap", percent_text}});
  if (is_page) table.summary = "All figures";
  return table;
}

constexpr double kOverlapHeight = 240;

const GateResult* layer_gate(const Report& report) {
  const auto found =
      std::find_if(report.gates.begin(), report.gates.end(), [](const GateResult& result) {
        return result.gate.metric == "layers.cosine" && result.checked > 0;
      });
  return found == report.gates.end() ? nullptr : &*found;
}

DecadeAxis axis_of(const Report& report) {
  std::vector<double> cosines;
  for (const LayerAgreement& layer : report.layers->layers) {
    for (const double cosine : {layer.isolated.mean, layer.isolated.worst, layer.accumulated.mean})
      cosines.push_back(cosine);
  }
  if (const GateResult* gate = layer_gate(report)) cosines.push_back(gate->gate.limit);
  return decade_axis(cosines);
}

void draw_gate(const Report& report, const DecadeAxis& decades, LayerDrawing& drawing) {
  const GateResult* gate = layer_gate(report);
  if (gate == nullptr) return;
  Svg& svg = drawing.svg();
  const double y = drawing.y(decades.part(gate->gate.limit));
  svg.line({LayerDrawing::kLeft, y}, {LayerDrawing::kRight, y}, "limit");
  svg.text({LayerDrawing::kRight + 6, y - 2}, "limit-text", "gate");
  svg.text({LayerDrawing::kRight + 6, y + 12}, "limit-text", fmt::format("{}", gate->gate.limit));
  const auto bad = first_bad_layer(report);
  const auto& layers = report.layers->layers;
  const auto first = std::find_if(layers.begin(), layers.end(), [&](const LayerAgreement& layer) {
    return bad && layer.layer == *bad && !(layer.isolated.mean >= gate->gate.limit);
  });
  if (first == layers.end()) return;
  const double mean = first->isolated.mean;
  const SvgPoint at{drawing.x(static_cast<std::size_t>(first - layers.begin())),
                    drawing.y(std::isfinite(mean) ? decades.part(mean) : 1)};
  svg.circle(at, 8, "ring");
  const bool is_left = at.x < (LayerDrawing::kLeft + LayerDrawing::kRight) / 2;
  svg.text({at.x + (is_left ? 13 : -13), at.y + 4}, is_left ? "limit-text" : "end limit-text",
           fmt::format("{}: first below", layer_title(*first)));
}

// The lower end of the axis of overlaps: the tenth below the least value, at most 0.9.
double overlap_floor(const LayersReport& layers) {
  double least = 1;
  for (const LayerAgreement& layer : layers.layers) {
    for (const auto& overlap : {layer.router_overlap, layer.indexer_overlap})
      if (overlap && std::isfinite(*overlap)) least = std::min(least, *overlap);
  }
  return std::clamp(std::floor(least * 10) / 10, 0.0, 0.9);
}

Drawing draw_hidden_states(const Report& report) {
  const LayersReport& layers = *report.layers;
  const DecadeAxis decades = axis_of(report);
  LayerDrawing drawing(layers.layers, kHiddenHeight, "distance of hidden states per layer",
                       kDistanceTitle);
  drawing.draw_decades(decades);
  drawing.draw_layers();
  const auto draw = [&](std::string_view name, std::string_view line, std::string_view mark,
                        double (*cosine)(const LayerAgreement&)) {
    drawing.draw(
        cosine_curve({.name = name, .line = line, .mark = mark}, layers.layers, decades, cosine));
  };
  draw("isolated, worst token", "worst", "worst-mark",
       [](const LayerAgreement& layer) { return layer.isolated.worst; });
  draw("accumulated, mean", "b-line", "b",
       [](const LayerAgreement& layer) { return layer.accumulated.mean; });
  draw("isolated, mean", "a-line", "a",
       [](const LayerAgreement& layer) { return layer.isolated.mean; });
  draw_gate(report, decades, drawing);
  return {
      "<p class=\"legend\"><span class=\"key a-key\"></span>isolated, mean over tokens "
      "<span class=\"key w-key\"></span>isolated, worst token "
      "<span class=\"key b-key\"></span>accumulated, mean</p>\n" +
      drawing.finish()};
}

Drawing draw_overlaps(const LayersReport& layers) {
  const double low = overlap_floor(layers);
  const auto part = [low](double overlap) {
    return std::clamp((overlap - low) / (1 - low), 0.0, 1.0);
  };
  LayerDrawing drawing(layers.layers, kOverlapHeight, "agreement of routers per layer",
                       "chosen by both");
  const double step = low > 0.85 ? 0.02 : low > 0.45 ? 0.1 : 0.2;
  const auto n_steps = static_cast<int>(std::floor((1 - low) / step + 1e-9));
  for (int i = 0; i <= n_steps; ++i) {
    const double overlap = 1 - i * step;
    drawing.draw_tick(part(overlap), fmt::format("{:.0f}%", 100 * overlap));
  }
  drawing.draw_layers();
  std::string legend;
  const auto draw = [&](std::string_view name, std::string_view key, std::string_view mark,
                        std::optional<double> LayerAgreement::*overlap) {
    const bool has_any =
        std::any_of(layers.layers.begin(), layers.layers.end(),
                    [&](const auto& layer) { return (layer.*overlap).has_value(); });
    if (!has_any) return;
    drawing.draw({.name = name,
                  .line = mark == "a" ? "a-line" : "b-line",
                  .mark = mark,
                  .radius = 3,
                  .value = [&layers, overlap](std::size_t i) { return layers.layers[i].*overlap; },
                  .part = part,
                  .text = percent_text});
    legend = fmt::format("<span class=\"key {}-key\"></span>{} {}", mark, key, legend);
  };
  draw("positions", "positions of the indexer", "b", &LayerAgreement::indexer_overlap);
  draw("experts", "experts of the router", "a", &LayerAgreement::router_overlap);
  return {fmt::format("<p class=\"legend\">{}</p>\n", legend) + drawing.finish()};
}

// Figures of a cache under the stored scales and under 1, of all layers.
std::string cache_text(const LayersReport& layers) {
  ClippedCache all;
  for (const LayerAgreement& layer : layers.layers) {
    for (const ClippedCache& cache : layer.cache) all.add(cache);
  }
  if (all.values == 0) return {};
  return fmt::format(
      "FP8 cache of {} values: the stored scales cut off {}, relative error {}; under 1.0 {} and "
      "{}",
      count_text(all.values), share_text(all.stored.clipped, all.values),
      short_text(all.relative_error(all.stored)), share_text(all.at_one.clipped, all.values),
      short_text(all.relative_error(all.at_one)));
}

void add_cache(const LayersReport& layers, Form form, Section& section) {
  const std::string text = cache_text(layers);
  if (text.empty()) return;
  section.note(text);
  if (form != Form::kPage) return;
  Json rows = Json::array();
  for (const LayerAgreement& layer : layers.layers) {
    for (const ClippedCache& cache : layer.cache) {
      rows.push_back(row_of(cache));
      rows.back()["layer"] = layer_title(layer);
    }
  }
  Table table = table_of(rows, {{"FP8 cache", "layer"},
                                {"of", "of"},
                                {"cut off", "clipped", percent_text},
                                {"under 1.0", "clipped_at_one", percent_text},
                                {"rel. error", "relative_error", short_text},
                                {"under 1.0", "relative_error_at_one", short_text}});
  table.summary = "FP8 cache of keys and values, layer by layer";
  section.add(std::move(table));
}

}  // namespace

std::string worst_place(const Json& row) {
  return fmt::format("prompt {}, token {}", row.at("worst_prompt").get<std::size_t>() + 1,
                     row.at("worst_token").get<std::size_t>());
}

void add_layer_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections) {
  if (!report.layers || report.layers->layers.empty()) return;
  const LayersReport& layers = *report.layers;
  Section section{"layers", "Hidden states, layer by layer", {}};
  const std::string inputs =
      fmt::format("{} tokens of {} prompts; source in {}, output in {}", count_text(layers.tokens),
                  count_text(layers.prompts), layers.source_profile, layers.output_profile);
  if (form == Form::kPage) {
    section.add(draw_hidden_states(report));
    section.note(
        inputs +
        ". Isolated: both are given the source's hidden state, so a peak is that layer's own. "
        "Accumulated: each continues its own stream.");
  }
  section.add(layer_table(layers, form, n_worst));
  if (form != Form::kPage) {
    section.note(fmt::format("{}; accumulated cosine after the last layer {}", inputs,
                             cosine_text(layers.layers.back().accumulated.mean)));
    if (const auto bad = first_bad_layer(report))
      section.note(fmt::format("layer {} is the first below its gate", *bad));
  }
  add_cache(layers, form, section);
  sections.push_back(std::move(section));
  const bool has_overlaps = std::any_of(
      layers.layers.begin(), layers.layers.end(),
      [](const LayerAgreement& layer) { return layer.router_overlap || layer.indexer_overlap; });
  if (form != Form::kPage || !has_overlaps) return;
  sections.push_back(
      {"router",
       "Agreement of routers",
       {draw_overlaps(layers),
        Paragraph{"Share of the source's choices that the output makes too, where both get the "
                  "source's hidden state; mean over tokens.",
                  true}}});
}

}  // namespace ingot::verify
