#pragma once

#include <string_view>

#include "formats/container/tensor.h"

namespace ingot::inference {

/// Is shown what goes into the linears of a model, for calibration.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  /// Rows [tokens, K] that a linear is about to be applied to. `weight` is its canonical name;
  /// `matrix` says which one of a stack it is. A linear that is applied run of rows by run of rows
  /// shows what the first run sees. Calls come one after the other.
  virtual void see(std::string_view weight, std::size_t matrix,
                   formats::MatrixView<const float> x) = 0;
};

}  // namespace ingot::inference
