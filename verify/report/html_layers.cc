#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
#include "verify/report/layer_axes.h"

namespace ingot::verify {
namespace {

constexpr double kFloor = 1e-9;  // 1 - cosine below it is noise of sums

// Where 1 - cosine stands between the decades of an axis.
struct DecadeAxis {
  int low = 0, high = 0;
  [[nodiscard]] double part(double distance) const {
    const double decade = std::log10(std::max(distance, std::pow(10.0, low)));
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

struct Series {
  std::string_view name, line, mark;  // style of each
  double (*cosine)(const LayerAgreement&);
};

void draw_series(const Report& report, const LayerAxes& axes, const DecadeAxis& decades,
                 const Series& series, Svg& svg) {
  std::vector<SvgPoint> run;
  const auto& layers = report.layers->layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double cosine = series.cosine(layers[i]);
    if (!std::isfinite(cosine)) {
      svg.polyline(run, series.line);
      run.clear();
      continue;
    }
    run.push_back({axes.x(i), axes.y(decades.part(1 - cosine))});
  }
  svg.polyline(run, series.line);
  const double radius = layers.size() > 40 ? 2.4 : 3.2;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    const double cosine = series.cosine(layers[i]);
    const bool is_number = std::isfinite(cosine);
    const SvgPoint at{axes.x(i), axes.y(is_number ? decades.part(1 - cosine) : 1)};
    const std::string title =
        fmt::format("{}, {}: cosine {}", layer_title(layers[i]), series.name, cosine_text(cosine));
    if (!is_number) {
      svg.diamond(at, 6, "fault", title);
    } else if (series.mark == "b") {
      svg.diamond(at, radius + 1, series.mark, title);
    } else {
      svg.circle(at, radius, series.mark, title);
    }
  }
}

void draw_gate(const Report& report, const LayerAxes& axes, const DecadeAxis& decades, Svg& svg) {
  const GateResult* gate = layer_gate(report);
  if (gate == nullptr) return;
  const double y = axes.y(decades.part(1 - gate->gate.limit));
  svg.line({axes.left(), y}, {axes.right(), y}, "limit");
  svg.text({axes.right() + 6, y - 2}, "limit-text", "gate");
  svg.text({axes.right() + 6, y + 12}, "limit-text", fmt::format("{}", gate->gate.limit));
  const auto bad = first_bad_layer(report);
  if (!bad) return;
  const auto& layers = report.layers->layers;
  for (std::size_t i = 0; i < layers.size(); ++i) {
    if (layers[i].layer != *bad || layers[i].isolated.mean >= gate->gate.limit) continue;
    const double mean = layers[i].isolated.mean;
    const SvgPoint at{axes.x(i), axes.y(std::isfinite(mean) ? decades.part(1 - mean) : 1)};
    svg.circle(at, 8, "ring");
    const bool is_left = at.x < (axes.left() + axes.right()) / 2;
    svg.text({at.x + (is_left ? 13 : -13), at.y + 4}, is_left ? "limit-text" : "end limit-text",
             fmt::format("{}: first below", layer_title(layers[i])));
    return;
  }
}

constexpr std::array kSeries{
    Series{"isolated, worst token", "worst", "worst-mark",
           [](const LayerAgreement& layer) { return layer.isolated.worst; }},
    Series{"accumulated, mean", "b-line", "b",
           [](const LayerAgreement& layer) { return layer.accumulated.mean; }},
    Series{"isolated, mean", "a-line", "a",
           [](const LayerAgreement& layer) { return layer.isolated.mean; }},
};

std::string layer_table(const LayersReport& layers) {
  std::vector<std::vector<std::string>> rows;
  for (const LayerAgreement& layer : layers.layers) {
    const auto part = [](const std::optional<double>& overlap) {
      return overlap ? fmt::format("{:.2f}%", 100 * *overlap) : std::string("–");
    };
    rows.push_back({layer_title(layer), cosine_text(layer.isolated.mean),
                    cosine_text(layer.isolated.median), cosine_text(layer.isolated.worst),
                    fmt::format("prompt {}, token {}", layer.isolated.worst_prompt + 1,
                                layer.isolated.worst_token),
                    short_text(layer.isolated.relative_error), cosine_text(layer.accumulated.mean),
                    cosine_text(layer.accumulated.worst), part(layer.router_overlap),
                    part(layer.indexer_overlap)});
  }
  return "<details><summary>All figures</summary>\n" +
         html_table({{.title = ""},
                     {.title = "isolated mean", .is_number = true},
                     {.title = "median", .is_number = true},
                     {.title = "worst", .is_number = true},
                     {.title = "worst at"},
                     {.title = "rel. error", .is_number = true},
                     {.title = "accumulated mean", .is_number = true},
                     {.title = "worst", .is_number = true},
                     {.title = "experts", .is_number = true},
                     {.title = "positions", .is_number = true}},
                    rows) +
         "</details>\n";
}

}  // namespace

std::string html_layers(const Report& report) {
  if (!report.layers || report.layers->layers.empty()) return {};
  const LayersReport& layers = *report.layers;
  const LayerAxes axes(layers, 340);
  const DecadeAxis decades = axis_of(report);
  Svg svg(LayerAxes::width(), 340, "distance of hidden states per layer", true);
  for (int decade = decades.low; decade <= decades.high; ++decade) {
    axes.draw_tick(svg, static_cast<double>(decade - decades.low) / (decades.high - decades.low),
                   power_of_ten(decade));
  }
  axes.draw_layers(svg);
  axes.draw_title(svg, "1 − cosine (down is closer)");
  for (const Series& series : kSeries) draw_series(report, axes, decades, series, svg);
  draw_gate(report, axes, decades, svg);
  return html_section(
      "layers", "Hidden states, layer by layer",
      "<p class=\"legend\"><span class=\"key a-key\"></span>isolated, mean over tokens "
      "<span class=\"key w-key\"></span>isolated, worst token "
      "<span class=\"key b-key\"></span>accumulated, mean</p>\n" +
          html_scroll(svg.finish()) +
          html_note(fmt::format(
              "{} tokens of {} prompts; source in {}, output in {}. Isolated: both are given the "
              "source's hidden state, so a peak is that layer's own. Accumulated: each continues "
              "its own stream.",
              count_text(layers.tokens), count_text(layers.prompts),
              html_text(layers.source_profile), html_text(layers.output_profile))) +
          layer_table(layers));
}

}  // namespace ingot::verify
