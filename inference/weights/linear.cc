#include "inference/weights/linear.h"

#include "formats/base/error.h"
#include "inference/weights/linear_state.h"

namespace ingot::inference {

Linear::Linear(std::shared_ptr<const State> state)
    : state_(std::move(state)), weight_(state_->part.weight) {}

void Linear::apply(MatrixView<const float> x, MatrixView<float> y, std::size_t threads) const {
  INGOT_CHECK(state_ && x.cols == cols() && y.cols == rows() && x.rows == y.rows);
  // Runs of rows may take the same x one after the other: the first speaks for all.
  if (state_->observer != nullptr && first_row_ == 0)
    state_->observer->see(state_->name, state_->matrix, x);
  if (!state_->activations) {
    apply_unquantized(x, y, threads);
    return;
  }
  if (x.rows == 0 || y.cols == 0) return;
  const QuantizedRows quantized = quantize_activations(x, *state_->activations);
  StaticInt8 fixed = state_->part.fixed;
  if (fixed.quant_bias != nullptr) fixed.quant_bias += first_row_;
  if (fixed.deq_scale != nullptr) fixed.deq_scale += first_row_;
  quantized_matmul(quantized, weight_, fixed, y, threads);
}

void Linear::apply_unquantized(MatrixView<const float> x, MatrixView<float> y,
                               std::size_t threads) const {
  INGOT_CHECK(state_ && x.cols == cols() && y.cols == rows() && x.rows == y.rows);
  matmul(x, weight_, state_->rounding, y, threads);
}

WeightRounding Linear::rounding() const {
  INGOT_CHECK(state_ != nullptr);
  return state_->rounding;
}

Linear Linear::row_range(std::size_t first, std::size_t n) const {
  INGOT_CHECK(first <= rows() && n <= rows() - first);
  Linear part = *this;
  part.weight_ = weight_.row_range(first, n);
  part.first_row_ += first;
  return part;
}

std::uint64_t Linear::n_bytes() const {
  return state_ ? state_->n_bytes : 0;
}

}  // namespace ingot::inference
