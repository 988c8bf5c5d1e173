#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "verify/report/sections.h"
#include "verify/report/svg.h"

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

constexpr double kWidth = 860, kLeft = 62, kRight = kWidth - 64, kTop = 14, kBottom = 44;
constexpr double kHiddenHeight = 340, kOverlapHeight = 240;
constexpr std::size_t kMostTicks = 21;
constexpr double kTickRoom = 28;  // between "60" and "MTP"
constexpr double kFloor = 1e-9;   // 1 - cosine below it is noise of sums

// One line of a drawing over the layers.
struct Curve {
  std::string_view name, line, mark;  // styles of the last two
  double radius = 0;
  std::function<std::optional<double>(const LayerAgreement&)> value;
  std::function<double(double)> part;  // where a value stands: 0 at the bottom, 1 at the top
  std::function<std::string(double)> text;
};

// A drawing with the layers from left to right.
class LayerDrawing {
 public:
  LayerDrawing(const LayersReport& layers, double height, std::string_view label,
               std::string_view title)
      : layers_(layers.layers), height_(height), svg_(kWidth, height, label, true) {
    svg_.vertical_text({14, (y(0) + y(1)) / 2}, "mid soft", title);
  }

  // Half a step of room at both ends, so that one layer stands in the middle.
  [[nodiscard]] double x(std::size_t index) const {
    const auto count = static_cast<double>(layers_.size());
    return kLeft + (kRight - kLeft) * (static_cast<double>(index) + 0.5) / count;
  }
  [[nodiscard]] double y(double part) const {
    return height_ - kBottom - part * (height_ - kBottom - kTop);
  }
  [[nodiscard]] Svg& svg() { return svg_; }

  void draw_tick(double part, std::string_view text) {
    svg_.line({kLeft, y(part)}, {kRight, y(part)}, "grid");
    svg_.text({kLeft - 7, y(part) + 4}, "end", text);
  }

  void draw_layers() {
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

  // Values that are no numbers break the line and are faults; absent ones are left out.
  void draw(const Curve& curve) {
    std::vector<SvgPoint> run;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::optional<double> value = curve.value(layers_[i]);
      if (!value) continue;
      if (std::isfinite(*value)) {
        run.push_back({x(i), y(curve.part(*value))});
      } else {
        svg_.polyline(std::exchange(run, {}), curve.line);
      }
    }
    svg_.polyline(run, curve.line);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      const std::optional<double> value = curve.value(layers_[i]);
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

  [[nodiscard]] std::string finish() const { return html_scroll(svg_.finish()); }

 private:
  const std::vector<LayerAgreement>& layers_;
  double height_;
  Svg svg_;
};

// Where 1 - cosine stands between the decades of an axis.
struct DecadeAxis {
  int low = 0, high = 0;
  [[nodiscard]] double part(double cosine) const {
    const double decade = std::log10(std::max(1 - cosine, std::pow(10.0, low)));
    return std::clamp((decade - low) / (high - low), 0.0, 1.0);
  }
};

const GateResult* layer_gate(const Report& report) {
  const auto found =
      std::find_if(report.gates.begin(), report.gates.end(), [](const GateResult& result) {
        return result.gate.metric == "layers.cosine" && result.checked > 0;
      });
  return found == report.gates.end() ? nullptr : &*found;
}

DecadeAxis axis_of(const Report& report) {
  double least = 1, most = kFloor;
  const auto see = [&](double cosine) {
    if (!std::isfinite(cosine)) return;
    const double distance = std::clamp(1 - cosine, kFloor, 2.0);
    least = std::min(least, distance);
    most = std::max(most, distance);
  };
  for (const LayerAgreement& layer : report.layers->layers) {
    see(layer.isolated.mean);
    see(layer.isolated.worst);
    see(layer.accumulated.mean);
  }
  if (const GateResult* gate = layer_gate(report)) see(gate->gate.limit);
  // A hair's breadth off, so that a value on a decade does not open the next.
  DecadeAxis axis{.low = static_cast<int>(std::floor(std::log10(least) + 1e-9)),
                  .high = static_cast<int>(std::ceil(std::log10(most) - 1e-9))};
  if (axis.high <= axis.low) axis.high = axis.low + 1;
  return axis;
}

void draw_gate(const Report& report, const DecadeAxis& decades, LayerDrawing& drawing) {
  const GateResult* gate = layer_gate(report);
  if (gate == nullptr) return;
  Svg& svg = drawing.svg();
  const double y = drawing.y(decades.part(gate->gate.limit));
  svg.line({kLeft, y}, {kRight, y}, "limit");
  svg.text({kRight + 6, y - 2}, "limit-text", "gate");
  svg.text({kRight + 6, y + 12}, "limit-text", fmt::format("{}", gate->gate.limit));
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
  const bool is_left = at.x < (kLeft + kRight) / 2;
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
  LayerDrawing drawing(layers, kHiddenHeight, "distance of hidden states per layer",
                       "1 − cosine (down is closer)");
  for (int decade = decades.low; decade <= decades.high; ++decade) {
    drawing.draw_tick(static_cast<double>(decade - decades.low) / (decades.high - decades.low),
                      power_of_ten(decade));
  }
  drawing.draw_layers();
  const auto draw = [&](std::string_view name, std::string_view line, std::string_view mark,
                        double (*cosine)(const LayerAgreement&)) {
    drawing.draw({.name = name,
                  .line = line,
                  .mark = mark,
                  .radius = layers.layers.size() > 40 ? 2.4 : 3.2,
                  .value = cosine,
                  .part = [&](double value) { return decades.part(value); },
                  .text = [](double value) { return "cosine " + cosine_text(value); }});
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
  LayerDrawing drawing(layers, kOverlapHeight, "agreement of routers per layer", "chosen by both");
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
                  .value = [=](const LayerAgreement& layer) { return layer.*overlap; },
                  .part = part,
                  .text = percent_text});
    legend = fmt::format("<span class=\"key {}-key\"></span>{} {}", mark, key, legend);
  };
  draw("positions", "positions of the indexer", "b", &LayerAgreement::indexer_overlap);
  draw("experts", "experts of the router", "a", &LayerAgreement::router_overlap);
  return {fmt::format("<p class=\"legend\">{}</p>\n", legend) + drawing.finish()};
}

}  // namespace

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
