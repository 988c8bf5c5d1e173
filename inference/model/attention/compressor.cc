#include "inference/model/attention/compressor.h"

#include "inference/model/attention/pooled_window.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/recent_rows.h"

namespace ingot::inference {

namespace {

std::size_t series_of(const CompressorSpec& spec) {
  return spec.overlap ? 2 : 1;
}

// Tokens before a run that its first entry may be of.
std::size_t reach_of(const CompressorSpec& spec) {
  return series_of(spec) * spec.ratio - 1;
}

}  // namespace

Compressor::Compressor(const BlockWeights& weights, const StepContext& context, bool is_of_indexer,
                       const CompressorSpec& spec, std::size_t width)
    : spec_(spec), width_(width), series_(series_of(spec)) {
  using enum formats::FineRole;
  const std::size_t hidden = context.spec.hidden, outputs = series_ * width;
  values_ =
      weights.linear(is_of_indexer ? kIndexCompressorValues : kCompressorValues, outputs, hidden);
  logits_ = weights.linear(is_of_indexer ? kIndexCompressorGate : kCompressorGate, outputs, hidden);
  position_logits_ = weights.vector(is_of_indexer ? kIndexCompressorPlaces : kCompressorPlaces,
                                    {spec.ratio, outputs});
  norm_ = weights.vector(is_of_indexer ? kIndexCompressorNorm : kCompressorNorm, {width});
}

Matrix Compressor::project(const StepContext& context, const StepRows& rows,
                           const Matrix& x) const {
  const std::size_t outputs = series_ * width_;
  Matrix projected(x.rows(), 2 * outputs);
  values_.apply(x.view(), projected.columns(0, outputs), context.threads);
  logits_.apply(x.view(), projected.columns(outputs, outputs), context.threads);
  round_between(context.profile, projected.values());
  for (std::size_t r = 0; r < x.rows(); ++r) {
    const float* bias = position_logits_.data() + rows.positions[r] % spec_.ratio * outputs;
    const auto logits = projected.row(r).subspan(outputs);
    for (std::size_t c = 0; c < outputs; ++c) logits[c] += bias[c];
  }
  return projected;
}

Matrix Compressor::entries(const StepContext& context, const RopeSpec& rope, const SequenceRun& run,
                           const Matrix& projected, std::span<float> state) const {
  const std::size_t outputs = series_ * width_, reach = reach_of(spec_);
  const auto mine = projected.block(run.first_row, run.count, 0, 2 * outputs);
  RecentRows recent(state, 2 * outputs);
  const Matrix tokens = recent.followed_by(run.first_position, reach, mine);
  recent.keep(run.first_position, mine);

  const std::size_t first = run.first_position / spec_.ratio;
  const std::size_t n = run.total() / spec_.ratio - first;
  Matrix made(n, width_);
  std::vector<std::uint32_t> positions;
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t window = first + i;
    std::vector<WindowPart> parts;
    const auto add = [&](std::size_t which, std::size_t column) {
      const std::size_t row = which * spec_.ratio + reach - run.first_position;
      parts.push_back({tokens.block(row, spec_.ratio, column, width_),
                       tokens.block(row, spec_.ratio, outputs + column, width_)});
    };
    if (spec_.overlap && window > 0) add(window - 1, 0);
    add(window, outputs - width_);
    pool_window(parts, made.row(i));
    positions.push_back(static_cast<std::uint32_t>(window * spec_.ratio));
  }
  round_between(context.profile, made.values());
  rms_norm(context.profile, made.view(), norm_, context.spec.norm.eps, made.view());
  const RopeAngles angles(context.profile, rope, positions);
  for (std::size_t i = 0; i < n; ++i) {
    angles.rotate(i, made.row(i).subspan(width_ - rope.dim));
  }
  return made;
}

}  // namespace ingot::inference
