#include "verify/report/layer_axes.h"

#include <fmt/format.h>

namespace ingot::verify {
namespace {

constexpr double kWidth = 860;
constexpr double kLeft = 62, kRight = 64, kTop = 14, kBottom = 44;
constexpr std::size_t kMostTicks = 21;
constexpr double kTickRoom = 28;  // between "60" and "MTP"

}  // namespace

LayerAxes::LayerAxes(const LayersReport& layers, double height)
    : layers_(layers), height_(height) {}

double LayerAxes::width() {
  return kWidth;
}
double LayerAxes::left() const {
  return kLeft;
}
double LayerAxes::right() const {
  return kWidth - kRight;
}

// Half a step of room at both ends, so that one layer stands in the middle.
double LayerAxes::x(std::size_t index) const {
  const auto count = static_cast<double>(layers_.layers.size());
  return kLeft + (right() - kLeft) * (static_cast<double>(index) + 0.5) / count;
}

double LayerAxes::y(double part) const {
  return height_ - kBottom - part * (height_ - kBottom - kTop);
}

void LayerAxes::draw_layers(Svg& svg) const {
  svg.line({kLeft, y(0)}, {right(), y(0)}, "axis");
  std::vector<std::size_t> ticks = spread_ticks(layers_.layers.size(), kMostTicks);
  if (!ticks.empty() && layers_.layers.back().is_mtp) {
    const std::size_t last = layers_.layers.size() - 1;
    while (!ticks.empty() && x(last) - x(ticks.back()) < kTickRoom) ticks.pop_back();
    ticks.push_back(last);
  }
  for (const std::size_t index : ticks) {
    const LayerAgreement& layer = layers_.layers[index];
    svg.line({x(index), y(0)}, {x(index), y(0) + 4}, "axis");
    svg.text({x(index), y(0) + 17}, "mid", layer.is_mtp ? "MTP" : std::to_string(layer.layer));
  }
  svg.text({(kLeft + right()) / 2, height_ - 6}, "mid soft", "layer");
}

void LayerAxes::draw_tick(Svg& svg, double part, std::string_view text) const {
  svg.line({kLeft, y(part)}, {right(), y(part)}, "grid");
  svg.text({kLeft - 7, y(part) + 4}, "end", text);
}

void LayerAxes::draw_title(Svg& svg, std::string_view title) const {
  svg.vertical_text({14, (y(0) + y(1)) / 2}, "mid soft", title);
}

std::string layer_title(const LayerAgreement& layer) {
  return fmt::format("{}layer {}", layer.is_mtp ? "MTP " : "", layer.layer);
}

}  // namespace ingot::verify
