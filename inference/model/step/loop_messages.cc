#include "inference/model/step/loop_messages.h"

#include <algorithm>
#include <cmath>

#include "inference/model/step/norm.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

struct GateRoles {
  FineRole down, gain, forget, queries;
  std::size_t row = 0;  ///< row of the queries of a layer
};
constexpr std::array kGateRoles = {
    GateRoles{FineRole::kQControllerDown, FineRole::kQControllerGain, FineRole::kQControllerForget,
              FineRole::kLoopQueries, 0},
    GateRoles{FineRole::kKControllerDown, FineRole::kKControllerGain, FineRole::kKControllerForget,
              FineRole::kLoopKeyQueries, 0},
    GateRoles{FineRole::kVControllerDown, FineRole::kVControllerGain, FineRole::kVControllerForget,
              FineRole::kLoopKeyQueries, 1},
    GateRoles{FineRole::kFeedForwardControllerDown, FineRole::kFeedForwardControllerGain,
              FineRole::kFeedForwardControllerForget, FineRole::kLoopQueries, 1}};
constexpr std::size_t kFeedForward = 3;

void copy_columns(MatrixView<const float> from, MatrixView<float> to) {
  for (std::size_t r = 0; r < from.rows; ++r) std::copy_n(from.row(r), from.cols, to.row(r));
}

}  // namespace

LoopMessages::LoopMessages(const BlockWeights& weights, const StepContext& context) {
  const LoopSpec& loop = context.spec.loop.value();
  const std::size_t hidden = context.spec.hidden, place = weights.layer() - loop.first;
  const BlockWeights of_model(weights.store());
  for (std::size_t i = 0; i < gates_.size(); ++i) {
    const GateRoles& roles = kGateRoles[i];
    const std::vector<float> all =
        of_model.vector(roles.queries, {2 * (loop.end - loop.first), hidden});
    const auto first = all.begin() + static_cast<std::ptrdiff_t>((2 * place + roles.row) * hidden);
    gates_[i] = {.query = SourceMix({first, first + static_cast<std::ptrdiff_t>(hidden)}),
                 .down = weights.linear(roles.down, loop.rank, 2 * hidden),
                 .gain = weights.linear(roles.gain, hidden, loop.rank),
                 .forget = weights.linear(roles.forget, hidden, loop.rank)};
  }
}

Matrix LoopMessages::gated(const StepContext& context, const LoopVisit& visit, const Gate& gate,
                           MatrixView<const float> input) const {
  const std::size_t hidden = context.spec.hidden, n = visit.sources.cols() / hidden;
  Matrix last(input.rows, hidden), both(input.rows, 2 * hidden);
  copy_columns(visit.sources.columns((n - 1) * hidden, hidden), last.view());
  const Matrix message = gate.query.inputs(context.profile, visit.sources, n - 1, last);
  const std::vector<float> ones(hidden, 1.0F);
  const float eps = context.spec.norm.eps;
  rms_norm(context.profile, input, ones, eps, both.columns(0, hidden));
  rms_norm(context.profile, message.view(), ones, eps, both.columns(hidden, hidden));
  const Matrix inner = rounded_product(context, gate.down, both);
  Matrix gain = product(context, gate.gain, inner), out = product(context, gate.forget, inner);
  for (std::size_t r = 0; r < out.rows(); ++r) {
    for (std::size_t c = 0; c < hidden; ++c) {
      out.row(r)[c] = (1 - std::tanh(out.row(r)[c])) * input.row(r)[c] +
                      std::tanh(gain.row(r)[c]) * message.row(r)[c];
    }
  }
  round_between(context.profile, out.values());
  return out;
}

Matrix LoopMessages::mixer_inputs(const StepContext& context, const LoopVisit& visit,
                                  const Matrix& inputs) const {
  const std::size_t hidden = context.spec.hidden;
  Matrix out(inputs.rows(), kFeedForward * hidden);
  for (std::size_t i = 0; i < kFeedForward; ++i) {
    const auto own = inputs.columns(inputs.cols() == hidden ? 0 : i * hidden, hidden);
    copy_columns(gated(context, visit, gates_[i], own).view(), out.columns(i * hidden, hidden));
  }
  return out;
}

Matrix LoopMessages::feed_forward_input(const StepContext& context, const LoopVisit& visit,
                                        const Matrix& input) const {
  return gated(context, visit, gates_[kFeedForward], input.view());
}

void visit_again(const ModelSpec& spec, std::size_t n_layers, Matrix& states,
                 const std::function<void(std::size_t layer, const LoopVisit& visit)>& visit) {
  const LoopSpec& loop = spec.loop.value();
  const std::size_t hidden = spec.hidden, n_loop = loop.end - loop.first;
  // Each run of the loop left the states that it began with among the sources; the first began
  // with those before the loop.
  const std::size_t first = spec.layers[loop.first].mixer_sources;
  const std::size_t n = spec.layers[loop.end - 1].feed_forward_sources - first;
  const std::size_t sources = states.cols() - spec.carried;
  for (std::size_t pass = 1; pass < loop.passes; ++pass) {
    Matrix left(states.rows(), n * hidden);
    copy_columns(states.columns(sources + (first + 1) * hidden, (n - 1) * hidden),
                 left.columns(0, (n - 1) * hidden));
    copy_columns(states.columns(0, hidden), left.columns((n - 1) * hidden, hidden));
    copy_columns(states.columns(sources + first * hidden, hidden), states.columns(0, hidden));
    for (std::size_t l = loop.first; l < loop.end; ++l) {
      visit(l, {.sources = left,
                .cache_layer = n_layers + (pass - 1) * n_loop + l - loop.first,
                .is_last = pass + 1 == loop.passes});
    }
  }
}

}  // namespace ingot::inference
