#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "formats/container/tensor.h"
#include "inference/kernels/matmul.h"
#include "quantize/coded_matrix.h"

namespace ingot::inference {

/// A run of rows or columns of a whole weight.
struct Range {
  std::size_t first = 0;
  std::size_t count = 0;
};

/// Called with the inputs of a model's linears, for calibration.
class InputObserver {
 public:
  virtual ~InputObserver() = default;
  /// Sees the rows [tokens, K] that a linear is about to be applied to. `weight` is its canonical
  /// name; `matrix` says which one of a stack it is. A linear that is applied run of rows by run of
  /// rows shows the input of the first run. Calls come one after the other.
  virtual void see(std::string_view weight, std::size_t matrix, MatrixView<const float> x) = 0;
};

/// A linear layer y = x W^T, or the rows and columns of it that a rank holds, in memory in its
/// stored encoding. Computes as the profile says for its scheme and activations. Copies share the
/// bytes.
class Linear {
 public:
  Linear() = default;

  [[nodiscard]] bool empty() const { return !state_; }
  [[nodiscard]] std::size_t rows() const { return weight_.rows; }  ///< part's rows: width of y
  [[nodiscard]] std::size_t cols() const { return weight_.cols; }  ///< part's columns: width of x

  /// y = x W^T as FP32 sums, which the caller rounds. In profile kNative rows of x are quantized
  /// first where the weight's scheme and activations ask for it, and a static quant_bias is added
  /// by the part that holds column 0.
  void apply(MatrixView<const float> x, MatrixView<float> y, std::size_t threads) const;
  /// Applies a matrix of `n` runs of rows, each to columns of its own: x [rows, n x cols()].
  /// Columns are shown for every run.
  void apply_in_runs(std::size_t n, MatrixView<const float> x, MatrixView<float> y,
                     std::size_t threads) const;
  /// Computes y = x W^T with decoded weights and unquantized activations, whatever the profile.
  void apply_unquantized(MatrixView<const float> x, MatrixView<float> y, std::size_t threads) const;
  /// Returns the weight itself, for the absorbed form and embedding look-ups.
  [[nodiscard]] const CodedMatrix& weight() const { return weight_; }
  /// Returns how decoded weights round in this profile: kExact in kF32, else kBf16 (kExact for
  /// weight-only schemes of kNative).
  [[nodiscard]] WeightRounding rounding() const;
  /// Returns rows [first, first + n), which share the bytes.
  [[nodiscard]] Linear row_range(std::size_t first, std::size_t n) const;
  /// Bytes held, of all rows that share them.
  [[nodiscard]] std::uint64_t n_bytes() const;

 private:
  friend class WeightStore;
  struct State;
  explicit Linear(std::shared_ptr<const State> state);
  std::shared_ptr<const State> state_;
  CodedMatrix weight_;         // rows of the state's
  std::size_t first_row_ = 0;  // first row in the state's weight
};

}  // namespace ingot::inference
