#include "inference/model/step/short_convolution.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "formats/base/error.h"
#include "inference/model/step/recent_rows.h"

namespace ingot::inference {

void convolve(formats::MatrixView<const float> weights, std::span<const float> bias,
              formats::MatrixView<const float> inputs, formats::MatrixView<float> out,
              std::size_t apart) {
  INGOT_CHECK(weights.rows == out.cols && inputs.cols == out.cols);
  INGOT_CHECK(inputs.rows == out.rows + (weights.cols - 1) * apart);
  INGOT_CHECK(bias.empty() || bias.size() == out.cols);
  for (std::size_t t = 0; t < out.rows; ++t) {
    float* to = out.row(t);
    for (std::size_t c = 0; c < out.cols; ++c) to[c] = bias.empty() ? 0.0F : bias[c];
    for (std::size_t k = 0; k < weights.cols; ++k) {
      const float* from = inputs.row(t + k * apart);
      for (std::size_t c = 0; c < out.cols; ++c) to[c] += weights.row(c)[k] * from[c];
    }
  }
}

Matrix convolved(Profile profile, const SequenceRun& run, formats::MatrixView<const float> weights,
                 std::span<const float> bias, formats::MatrixView<const float> inputs,
                 std::span<float> recent, std::size_t apart) {
  Matrix out(inputs.rows, inputs.cols);
  if (weights.cols > 1) {
    RecentRows rows(recent, inputs.cols);
    const Matrix all = rows.followed_by(run.first_position, (weights.cols - 1) * apart, inputs);
    rows.keep(run.first_position, inputs);
    convolve(weights, bias, all.view(), out.view(), apart);
  } else {
    convolve(weights, bias, inputs, out.view(), apart);
  }
  round_between(profile, out.values());
  return out;
}

ShortConvolution::ShortConvolution(const BlockWeights& weights, const StepContext& context,
                                   Convolved what)
    : kernel_(context.spec.layers[weights.layer()].short_convolution) {
  using formats::FineRole;
  constexpr std::array kConvolutionRoles = {FineRole::kKConvolution, FineRole::kVConvolution,
                                            FineRole::kMixerConvolution,
                                            FineRole::kFeedForwardConvolution};
  const std::size_t layer = weights.layer();
  const auto all = convolved_columns(context.spec, context.rank, layer);
  const auto place = static_cast<std::size_t>(what);
  for (std::size_t i = 0; i < place; ++i) first_ += (kernel_ - 1) * all[i].count;
  const Range mine = all[place];
  const bool is_output = what == Convolved::kAttention || what == Convolved::kFeedForward;
  const auto* grouped = context.spec.layers[layer].find<GroupedSpec>();
  INGOT_CHECK(is_output || grouped != nullptr);
  const std::size_t channels =
      is_output
          ? context.spec.hidden
          : grouped->kv_heads * (what == Convolved::kKeys ? grouped->head_dim : grouped->value_dim);
  if (context.spec.layers[layer].scales_convolution)
    scale_ = 1.0F / std::sqrt(static_cast<float>(kernel_ + 1));
  columns_ = {.first = is_output ? mine.first : 0, .count = mine.count};
  is_shared_out_ = is_output && mine.count < channels;
  const formats::Shape slice = {mine.count, 1, kernel_};
  const WeightStore& store = weights.store();
  const std::string name = weights.name(kConvolutionRoles[place]);
  if (store.source().slicing() != nullptr && store.shape_of(name) == slice) {
    weights_ = store.vector(name, slice);
    return;
  }
  const std::vector<float> whole = store.vector(name, {channels, 1, kernel_});
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(mine.first * kernel_);
  weights_.assign(first, first + static_cast<std::ptrdiff_t>(mine.count * kernel_));
}

void ShortConvolution::apply(const LayerStep& step, Matrix& rows) const {
  if (kernel_ == 0) return;
  INGOT_CHECK(step.recent.size() == step.rows.runs.size());
  const std::size_t width = columns_.count, before = kernel_ - 1;
  const formats::MatrixView<const float> weights{weights_.data(), width, kernel_, kernel_};
  for (std::size_t i = 0; i < step.rows.runs.size(); ++i) {
    const SequenceRun& run = step.rows.runs[i];
    const auto own = rows.block(run.first_row, run.count, columns_.first, width);
    RecentRows recent(step.recent[i].subspan(first_, before * width), width);
    const Matrix inputs = recent.followed_by(run.first_position, before, own);
    recent.keep(run.first_position, own);
    Matrix convolved(run.count, width);
    convolve(weights, {}, inputs.view(), convolved.view());
    for (std::size_t r = 0; r < run.count; ++r) {
      for (std::size_t c = 0; c < width; ++c)
        own.row(r)[c] = (own.row(r)[c] + convolved.row(r)[c]) * scale_;
    }
  }
  round_between(step.context.profile, rows.values());
  if (!is_shared_out_) return;
  for (std::size_t r = 0; r < rows.rows(); ++r) {
    const auto row = rows.row(r);
    std::ranges::fill(row.first(columns_.first), 0.0F);
    std::ranges::fill(row.subspan(columns_.first + width), 0.0F);
  }
  reduce(step, "convolved columns", rows);
}

}  // namespace ingot::inference
