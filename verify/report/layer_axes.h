#pragma once

#include "verify/report/report.h"
#include "verify/report/svg.h"

namespace ingot::verify {

/// The frame of a drawing with the layers from left to right: grid, ticks and titles.
class LayerAxes {
 public:
  LayerAxes(const LayersReport& layers, double height);

  [[nodiscard]] double x(std::size_t index) const;
  /// 0 at the bottom, 1 at the top.
  [[nodiscard]] double y(double part) const;
  [[nodiscard]] double left() const;
  [[nodiscard]] double right() const;

  void draw_layers(Svg& svg) const;
  void draw_tick(Svg& svg, double part, std::string_view text) const;
  void draw_title(Svg& svg, std::string_view title) const;

  static double width();

 private:
  const LayersReport& layers_;
  double height_;
};

/// "layer 3", "MTP layer 61".
std::string layer_title(const LayerAgreement& layer);

}  // namespace ingot::verify
