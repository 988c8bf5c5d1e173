#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "report/svg.h"
#include "verify/layers/layer_check.h"

namespace ingot::verify {

/// One line of a drawing over the layers.
struct Curve {
  std::string_view name, line, mark;  ///< styles of the last two
  double radius = 0;
  /// Value of the layer at this index.
  std::function<std::optional<double>(std::size_t)> value = {};
  std::function<double(double)> part = {};  ///< the place of a value: 0 at the bottom, 1 at the top
  std::function<std::string(double)> text = {};
};

/// The place of 1 - cosine between the decades of an axis.
struct DecadeAxis {
  int low = 0, high = 0;
  [[nodiscard]] double part(double cosine) const;
};
/// The decades around these cosines; values that are no numbers are left out.
DecadeAxis decade_axis(std::span<const double> cosines);

inline constexpr double kHiddenHeight = 340;
inline constexpr std::string_view kDistanceTitle = "1 − cosine (down is closer)";

/// A drawing with the layers from left to right, which must outlive it.
class LayerDrawing {
 public:
  static constexpr double kWidth = 860, kLeft = 62, kRight = kWidth - 64;

  /// `title` is written next to the upright axis.
  LayerDrawing(std::span<const LayerAgreement> layers, double height, std::string_view label,
               std::string_view title);

  [[nodiscard]] double x(std::size_t index) const;
  [[nodiscard]] double y(double part) const;
  [[nodiscard]] Svg& svg() { return svg_; }

  void draw_tick(double part, std::string_view text);
  void draw_decades(const DecadeAxis& axis);
  void draw_layers();
  /// Values that are no numbers break the line and are faults; absent ones are left out.
  void draw(const Curve& curve);

  [[nodiscard]] std::string finish() const;

 private:
  std::span<const LayerAgreement> layers_;
  double height_;
  Svg svg_;
};

/// The curve of a cosine of these layers, which it refers to, as it refers to the axis.
Curve cosine_curve(Curve named, std::span<const LayerAgreement> layers, const DecadeAxis& axis,
                   double (*cosine)(const LayerAgreement&));

}  // namespace ingot::verify
