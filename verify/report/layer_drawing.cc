#include "verify/report/layer_drawing.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "report/document.h"
#include "report/figures.h"

namespace ingot::verify {
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

}  // namespace ingot::verify
