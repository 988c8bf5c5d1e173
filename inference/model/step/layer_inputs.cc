#include "inference/model/step/layer_inputs.h"

#include <cmath>

#include "formats/base/parallel.h"
#include "inference/kernels/matmul.h"
#include "inference/kernels/vector_math.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::FineRole;

LayerInputs::LayerInputs(const BlockWeights& weights, const StepContext& context)
    : store_(&weights.store()),
      spec_(context.spec.layer_inputs.value()),
      table_(weights.name(formats::Role::kLookupTable)) {
  const std::size_t columns = context.spec.n_main * spec_.width;
  // A rank's own slice has equal shares of the rows.
  const formats::Shape& stored = store_->shape_of(table_);
  const bool is_slice = stored.size() == 2 && stored[0] < spec_.rows;
  n_rows_ = is_slice ? static_cast<std::size_t>(stored[0]) : spec_.rows;
  first_row_ = is_slice ? context.rank.tp_rank() * n_rows_ : 0;
  // The table is there and has this shape.
  static_cast<void>(store_->bytes_of(
      {.name = table_, .whole = {n_rows_, columns}, .rows = {0, 1}, .cols = {0, columns}}));
  projection_ = weights.linear(FineRole::kLayerInputsProj, columns, context.spec.hidden);
  norm_ =
      hidden_norm(weights, spec_.width, context.spec.norm, {.weight = FineRole::kLayerInputsNorm});
}

Matrix LayerInputs::looked_up(const StepContext& context,
                              std::span<const std::size_t> tokens) const {
  const std::size_t columns = context.spec.n_main * spec_.width;
  Matrix found(tokens.size(), columns);
  parallel_for(tokens.size(), context.threads, [&](std::size_t r) {
    const std::size_t row = (tokens[r] < spec_.rows ? tokens[r] : 0) - first_row_;  // wraps around
    if (row >= n_rows_) return;
    const Linear read = store_->read(
        {.name = table_, .whole = {n_rows_, columns}, .rows = {row, 1}, .cols = {0, columns}}, 1);
    decode_row(read.weight(), 0, found.row(r));
  });
  if (n_rows_ < spec_.rows)
    context.comm.all_reduce({.group = Group::kTensor, .name = "rows of layer inputs"},
                            found.values());
  return found;
}

Matrix LayerInputs::make(const StepContext& context, std::span<const std::size_t> tokens,
                         const Matrix& embedded) const {
  const Profile profile = context.profile;
  Matrix inputs = rounded_product(context, projection_, embedded);
  scale_rounded(profile, 1.0F / std::sqrt(static_cast<float>(context.spec.hidden)), inputs);
  for (std::size_t first = 0; first < inputs.cols(); first += spec_.width) {
    const auto part = inputs.columns(first, spec_.width);
    rms_norm(profile, part, norm_.weight, norm_.form.eps, part);
  }
  Matrix found = looked_up(context, tokens);
  auto root = std::sqrt(static_cast<float>(spec_.width));
  round_between(profile, {&root, 1});
  scale_rounded(profile, root, found);
  add_rounded(profile, inputs, found);
  scale_rounded(profile, std::sqrt(0.5F), inputs);
  return inputs;
}

LayerInputGate::LayerInputGate(const BlockWeights& weights, const StepContext& context)
    : width_(context.spec.layer_inputs.value().width) {
  first_ = weights.layer() * width_;
  gate_ = weights.linear(FineRole::kLayerInputGate, width_, context.spec.hidden);
  up_ = weights.linear(FineRole::kLayerInputProj, context.spec.hidden, width_);
  norm_ = hidden_norm(weights, context.spec.hidden, context.spec.norm,
                      {.weight = FineRole::kLayerInputNorm});
}

Matrix LayerInputGate::added(const StepContext& context, const Matrix& x,
                             const Matrix& inputs) const {
  Matrix gated = rounded_product(context, gate_, x);
  for (float& value : gated.values()) value = gelu_f32(value);
  round_between(context.profile, gated.values());
  for (std::size_t r = 0; r < gated.rows(); ++r) {
    const auto own = inputs.row(r).subspan(first_, width_);
    for (std::size_t c = 0; c < width_; ++c) gated.row(r)[c] *= own[c];
  }
  round_between(context.profile, gated.values());
  return normed(context, rounded_product(context, up_, gated), norm_);
}

}  // namespace ingot::inference
