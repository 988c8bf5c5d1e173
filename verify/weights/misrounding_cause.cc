// Each cause is an experiment: the writer's possible mistake is made with the scales, or to the
// quotient that it rounded, and the codes are held against the source again.

#include <optional>
#include <vector>

#include <fmt/format.h>

#include "formats/container/bfloat16.h"
#include "formats/storage/block_scales.h"
#include "verify/weights/element_run.h"
#include "verify/weights/weight_pair.h"

namespace ingot::verify {
namespace {

using formats::MatrixView;
using quantize::CodedMatrix;

MatrixView<float> view_of(std::vector<float>& values, const CodedMatrix& run) {
  return {.data = values.data(), .rows = run.rows, .cols = run.cols, .stride = run.cols};
}

/// A band of one side, decoded.
struct Decoded {
  std::vector<std::byte> codes;
  std::vector<float> scales;  ///< scales of the whole tensor
  std::vector<std::uint8_t> zeros;
  std::vector<std::uint32_t> group_order;
  std::vector<float> column_factors;
  CodedMatrix run;
  std::vector<float> values;
};

Decoded read(const ComparedTensor& side, const WeightBand& band) {
  const formats::LogicalTensor& tensor = side.tensor;
  Decoded read;
  read.run = read_band(side, {.row = band.row, .rows = band.rows, .cols = tensor.shape.back()},
                       nullptr, read.codes)
                 .run;
  if (tensor.encoding.block_cols != 0) {
    const formats::ScaleReader reader(side.source, tensor, {.allow_zero = true});
    read.scales = reader.read({.first = 0, .n = reader.rows()});
    read.run.scales = read.scales;
    read.zeros = reader.read_zeros({.first = 0, .n = reader.rows()});
    read.run.zeros = read.zeros;
    const auto order = reader.group_order();
    read.group_order.assign(order.begin(), order.end());
    read.run.group_order = read.group_order;
    const auto factors = reader.column_factors();
    read.column_factors.assign(factors.begin(), factors.end());
    read.run.column_factors = read.column_factors;
    read.run.scale_cols = reader.cols();
    read.run.block_rows = tensor.encoding.block_rows;
    read.run.block_cols = tensor.encoding.block_cols;
  }
  read.values.resize(read.run.rows * read.run.cols);
  quantize::decode(read.run, view_of(read.values, read.run));
  return read;
}

class Experiments {
 public:
  Experiments(const ComparedTensor& source, const ComparedTensor& output, const WeightBand& band)
      : source_(read(source, band)), output_(read(output, band)) {
    if (output.tensor.encoding.stored.has(formats::Part::kGlobal))
      global_ = formats::ScaleReader(output.source, output.tensor, {.allow_zero = true}).global();
  }

  std::string run(std::span<const OtherScale> others) {
    const ElementSums before = compare(source_.values, output_.scales);
    if (before.misrounded == 0 || output_.scales.empty()) return {};
    left_ = before.misrounded / 100;
    if (explains(in_bf16()))
      return "scales computed in BF16 arithmetic: the quotient was rounded to BF16 before the code";
    for (const auto& [down, right] : {std::pair{0, 1}, {0, -1}, {1, 0}, {-1, 0}}) {
      if (!explains(compare(source_.values, neighbours(down, right)))) continue;
      return fmt::format("the scale of the neighbouring {} was taken", down != 0 ? "row" : "block");
    }
    if (explains(compare(source_.values, reciprocals())))
      return global_
                 ? "the reciprocal of the global scale is stored, as the other convention has it"
                 : "the reciprocal of the scale is stored";
    for (const OtherScale& other : others) {
      if (!explains(compare(source_.values, under(other.value)))) continue;
      return fmt::format(
          "codes were made under a scale shared with '{}', and another one is stored", other.name);
    }
    const float factor = best_factor(before.fitted_scale());
    if (factor > 0 && explains(compare(source_.values, times(1 / factor))))
      return fmt::format("every scale is {:.6g} times the one under which the codes were made",
                         factor);
    return {};
  }

 private:
  [[nodiscard]] bool explains(const ElementSums& after) const {
    return after.misrounded <= left_ && after.saturated <= left_ + after.elements / 1000 &&
           after.nonfinite == 0;
  }

  ElementSums compare(std::vector<float>& values, const std::vector<float>& scales) {
    CodedMatrix run = output_.run;
    run.scales = scales;
    std::vector<float> decoded(values.size());
    const MatrixView<float> out = view_of(decoded, run), in = view_of(values, run);
    quantize::decode(run, out);
    ElementSums sums;
    compare_elements({.source = in, .output = out, .stored = run, .grid = step_grid(run.scheme)},
                     sums);
    return sums;
  }

  // Least squares are off by the scatter of rounding, which the last codes of a row show.
  float best_factor(double fitted) {
    auto best = static_cast<float>(fitted);
    std::uint64_t least = ~std::uint64_t{0};
    for (const double step : {1e-4, 1e-5, 1e-6}) {
      const float middle = best;
      for (int i = -20; i <= 20; ++i) {
        const auto factor = static_cast<float>(static_cast<double>(middle) * (1 + i * step));
        if (!(factor > 0)) return 0;
        const std::uint64_t misrounded = compare(source_.values, times(1 / factor)).misrounded;
        if (misrounded >= least) continue;
        least = misrounded;
        best = factor;
      }
    }
    return best;
  }

  // Sums for the quotient in BF16, rounded to a code.
  ElementSums in_bf16() {
    std::vector<float> quotients(source_.values.size());
    quantize::for_each_piece(
        output_.run, [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
          const float scale = output_.run.scale(group);
          for (std::size_t c = begin; c < end; ++c) {
            const std::size_t i = r * output_.run.cols + c;
            quotients[i] =
                formats::float_from_bf16(formats::bf16_from_float(source_.values[i] / scale));
          }
        });
    return compare(quotients, std::vector<float>(output_.scales.size(), 1.0F));
  }

  [[nodiscard]] std::vector<float> neighbours(int down, int right) const {
    const std::size_t cols = static_cast<std::size_t>(output_.run.scale_cols);
    const std::size_t rows = output_.scales.size() / cols;
    std::vector<float> scales(output_.scales.size());
    for (std::size_t r = 0; r < rows; ++r) {
      for (std::size_t c = 0; c < cols; ++c) {
        const std::size_t row = (r + rows + static_cast<std::size_t>(down + 1) - 1) % rows;
        const std::size_t col = (c + cols + static_cast<std::size_t>(right + 1) - 1) % cols;
        scales[r * cols + c] = output_.scales[row * cols + col];
      }
    }
    return scales;
  }

  [[nodiscard]] std::vector<float> times(float factor) const {
    std::vector<float> scales = output_.scales;
    for (float& scale : scales) scale *= factor;
    return scales;
  }

  // Returns the scales as if `other`, the one scale of another weight, were this weight's.
  [[nodiscard]] std::vector<float> under(float other) const {
    const float own = global_ ? global_->value : output_.scales.front();
    return times(global_ && global_->divides ? own / other : other / own);
  }

  [[nodiscard]] std::vector<float> reciprocals() const {
    if (global_) {
      const float square = global_->value * global_->value;
      return times(global_->divides ? square : 1 / square);
    }
    std::vector<float> scales = output_.scales;
    for (float& scale : scales) scale = 1 / scale;
    return scales;
  }

  std::optional<formats::GlobalScale> global_;
  Decoded source_, output_;
  std::uint64_t left_ = 0;
};

}  // namespace

std::string misrounding_cause(const ComparedTensor& source, const ComparedTensor& output,
                              const WeightBand& band, std::span<const OtherScale> others) {
  return Experiments(source, output, band).run(others);
}

}  // namespace ingot::verify
