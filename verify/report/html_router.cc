#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
#include "verify/report/layer_axes.h"

namespace ingot::verify {
namespace {

using Overlap = std::optional<double> LayerAgreement::*;

constexpr double kHeight = 240;

// The upper end of [0, 1], from the tenth below the least value; at least the upper tenth.
class OverlapAxis {
 public:
  explicit OverlapAxis(const LayersReport& layers) {
    double least = 1;
    for (const LayerAgreement& layer : layers.layers) {
      for (const auto& overlap : {layer.router_overlap, layer.indexer_overlap})
        if (overlap && std::isfinite(*overlap)) least = std::min(least, *overlap);
    }
    low_ = std::clamp(std::floor(least * 10) / 10, 0.0, 0.9);
  }

  [[nodiscard]] double part(double overlap) const {
    return std::clamp((overlap - low_) / (1 - low_), 0.0, 1.0);
  }

  void draw(const LayerAxes& axes, Svg& svg) const {
    const double step = low_ > 0.85 ? 0.02 : low_ > 0.45 ? 0.1 : 0.2;
    const auto steps = static_cast<int>(std::floor((1 - low_) / step + 1e-9));
    for (int i = 0; i <= steps; ++i) {
      const double overlap = 1 - i * step;
      axes.draw_tick(svg, part(overlap), fmt::format("{:.0f}%", 100 * overlap));
    }
  }

 private:
  double low_ = 0;
};

bool has_any(const LayersReport& layers, Overlap member) {
  return std::any_of(layers.layers.begin(), layers.layers.end(),
                     [&](const LayerAgreement& layer) { return (layer.*member).has_value(); });
}

void draw_overlaps(const LayersReport& layers, const LayerAxes& axes, const OverlapAxis& overlaps,
                   Overlap member, std::string_view what, Svg& svg) {
  const bool is_router = member == &LayerAgreement::router_overlap;
  std::vector<SvgPoint> points;
  std::vector<std::string> titles;
  for (std::size_t i = 0; i < layers.layers.size(); ++i) {
    const LayerAgreement& layer = layers.layers[i];
    const std::optional<double>& overlap = layer.*member;
    if (!overlap || !std::isfinite(*overlap)) continue;
    points.push_back({axes.x(i), axes.y(overlaps.part(*overlap))});
    titles.push_back(fmt::format("{}, {}: {:.2f}%", layer_title(layer), what, 100 * *overlap));
  }
  svg.polyline(points, is_router ? "a-line" : "b-line");
  for (std::size_t i = 0; i < points.size(); ++i) {
    if (is_router)
      svg.circle(points[i], 3, "a", titles[i]);
    else
      svg.diamond(points[i], 4, "b", titles[i]);
  }
}

}  // namespace

std::string html_router(const Report& report) {
  if (!report.layers) return {};
  const LayersReport& layers = *report.layers;
  const bool has_router = has_any(layers, &LayerAgreement::router_overlap);
  const bool has_indexer = has_any(layers, &LayerAgreement::indexer_overlap);
  if (!has_router && !has_indexer) return {};
  const LayerAxes axes(layers, kHeight);
  const OverlapAxis overlaps(layers);
  Svg svg(LayerAxes::width(), kHeight, "agreement of routers per layer", true);
  overlaps.draw(axes, svg);
  axes.draw_layers(svg);
  axes.draw_title(svg, "chosen by both");
  std::string legend;
  if (has_indexer) {
    draw_overlaps(layers, axes, overlaps, &LayerAgreement::indexer_overlap, "positions", svg);
    legend = "<span class=\"key b-key\"></span>positions of the indexer";
  }
  if (has_router) {
    draw_overlaps(layers, axes, overlaps, &LayerAgreement::router_overlap, "experts", svg);
    legend = "<span class=\"key a-key\"></span>experts of the router " + legend;
  }
  return html_section(
      "router", "Agreement of routers",
      fmt::format("<p class=\"legend\">{}</p>\n", legend) + html_scroll(svg.finish()) +
          html_note("The part of what the source chooses that the output chooses "
                    "too, both given the source's hidden state; mean over tokens."));
}

}  // namespace ingot::verify
