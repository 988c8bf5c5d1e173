#include "inference/model/feed_forward/mixture.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/model/step/step.h"
#include "inference/parallel/split.h"

namespace ingot::inference {

Mixture::Mixture(const WeightStore& weights, const StepContext& context, const std::string& prefix,
                 std::uint32_t layer, ExpertStore& experts)
    : layer_(layer), experts_(&experts) {
  const RouterSpec& spec = *context.spec.router;
  const std::size_t hidden = context.spec.hidden;
  mine_ = expert_part(context.rank, spec.experts);
  router_ =
      weights.linear(prefix + "gate.weight", spec.experts, hidden, {0, spec.experts}, {0, hidden});
  const std::string bias = prefix + "gate.e_score_correction_bias";
  // By presence, not by the name of the model.
  if (spec.correction_bias || weights.has(bias)) bias_ = weights.vector(bias, {spec.experts});
  if (context.spec.shared_intermediate > 0) {
    shared_ =
        Mlp::load(weights, context, prefix + "shared_experts.", context.spec.shared_intermediate);
  }
}

Routing Mixture::choose(const StepContext& context, const Matrix& x) const {
  Matrix logits(x.rows(), router_.rows());
  matmul(x.view(), router_.weight(), WeightRounding::kExact, logits.view(), context.threads);
  require_finite(logits, layer_, "the router");
  return route(*context.spec.router, logits.view(), bias_);
}

Matrix Mixture::run_expert(const StepContext& context, std::uint32_t expert,
                           const Matrix& rows) const {
  const std::shared_ptr<const Expert> held = experts_->get(layer_, expert);
  const Mlp mlp{.gate = held->gate, .up = held->up, .down = held->down};
  Matrix out = mlp.partial(context, rows);
  round_between(context.profile, out.values());
  return out;
}

Matrix Mixture::own_experts(const StepContext& context, const Matrix& x,
                            const Routing& routing) const {
  // For each expert, the tokens that chose it, ascending, and where their weight stands.
  std::vector<std::vector<std::size_t>> chosen_by(mine_.count);
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    const std::size_t expert = routing.experts[i];
    if (expert - mine_.first < mine_.count) chosen_by[expert - mine_.first].push_back(i);
  }
  std::vector<std::uint32_t> needed;
  for (std::size_t e = 0; e < mine_.count; ++e) {
    if (!chosen_by[e].empty()) needed.push_back(static_cast<std::uint32_t>(mine_.first + e));
  }
  experts_->prefetch(layer_, needed);

  Matrix sum(x.rows(), x.cols());
  for (const std::uint32_t expert : needed) {
    const auto& places = chosen_by[expert - mine_.first];
    Matrix rows(places.size(), x.cols());
    for (std::size_t i = 0; i < places.size(); ++i) {
      std::ranges::copy(x.row(places[i] / routing.topk), rows.row(i).begin());
    }
    const Matrix out = run_expert(context, expert, rows);
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto to = sum.row(places[i] / routing.topk);
      const auto from = out.row(i);
      const float weight = routing.weights[places[i]];
      for (std::size_t c = 0; c < to.size(); ++c) to[c] += weight * from[c];
    }
  }
  return sum;
}

Matrix Mixture::forward(const StepContext& context, const Matrix& x, const Taps& taps) const {
  const Routing routing = choose(context, x);
  if (taps.router) taps.router(layer_, routing.experts, routing.weights);
  const bool exchanged = context.rank.ep_size != context.rank.tp_size;
  Matrix sum =
      exchanged ? exchanged_experts(context, x, routing) : own_experts(context, x, routing);
  Matrix shared = shared_ ? shared_->partial(context, x) : Matrix();
  const auto add = [](Matrix& to, const Matrix& what) {
    for (std::size_t i = 0; i < what.values().size(); ++i) to.values()[i] += what.values()[i];
  };
  // transformers rounds the routed sum and the shared output each; the sum of a native deployment
  // is FP32 throughout.
  const bool apart = context.profile == Profile::kBf16 || exchanged;
  if (!apart) add(sum, shared);
  if (!exchanged) context.comm.all_reduce(Group::kTensor, sum.values());
  if (apart && shared_) {
    context.comm.all_reduce(Group::kTensor, shared.values());
    if (context.profile == Profile::kBf16) {
      round_between(context.profile, sum.values());
      round_between(context.profile, shared.values());
    }
    add(sum, shared);
  }
  round_between(context.profile, sum.values());
  return sum;
}

}  // namespace ingot::inference
