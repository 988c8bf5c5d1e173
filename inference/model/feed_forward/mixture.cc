#include "inference/model/feed_forward/mixture.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

using formats::FineRole;
using formats::Role;

Mlp Mlp::load(const BlockWeights& weights, const StepContext& context, const Roles& roles,
              const MlpSpec& spec, Range mine, std::optional<InStack> stack) {
  const std::size_t hidden = context.spec.hidden, intermediate = spec.width;
  const Range all{0, hidden};
  const auto read = [&](Role role, std::size_t n_rows, std::size_t n_cols, const Range& rows,
                        const Range& cols) {
    LinearPart part{
        .name = weights.name(role), .whole = {n_rows, n_cols}, .rows = rows, .cols = cols};
    if (stack) {
      part.whole.insert(part.whole.begin(), stack->count);
      part.matrix = stack->matrix;
    }
    return weights.store().read(part, context.threads);
  };
  Mlp mlp{.form = spec.gate};
  mlp.down = read(roles.down, hidden, intermediate, all, mine);
  if (roles.gate_up && weights.expects(*roles.gate_up)) {
    const BlockWeights::Rows each{.count = intermediate, .mine = mine};
    std::vector<Linear> both = weights.linears(*roles.gate_up, {each, each}, hidden);
    mlp.gate = std::move(both[0]);
    mlp.up = std::move(both[1]);
    return mlp;
  }
  if (spec.has_gate) {
    if (weights.store().has_rows_in_turn(weights.name(roles.gate))) {
      const Range pairs{2 * mine.first, 2 * mine.count};
      mlp.gate = read(roles.gate, 2 * intermediate, hidden, pairs, all);
      return mlp;
    }
    mlp.gate = read(roles.gate, intermediate, hidden, mine, all);
  }
  mlp.up = read(roles.up, intermediate, hidden, mine, all);
  return mlp;
}

void Mlp::load_biases(const BlockWeights& weights, const StepContext& context, const Roles& roles,
                      std::size_t width, Range mine) {
  const auto has = [&](const std::optional<FineRole>& role) {
    return role && weights.expects(*role);
  };
  std::vector<float> all;
  const auto add = [&](const std::vector<float>& values) {
    all.insert(all.end(), values.begin(), values.end());
    return values.size();
  };
  const std::size_t n_gate =
      has(roles.gate_bias) ? add(weights.vector_part(*roles.gate_bias, width, mine)) : 0;
  const std::size_t n_up =
      has(roles.up_bias) ? add(weights.vector_part(*roles.up_bias, width, mine)) : 0;
  // Only the first part adds the bias to its share of the sum.
  if (mine.first == 0 && has(roles.down_bias))
    add(weights.vector(*roles.down_bias, {context.spec.hidden}));
  own_biases = std::make_shared<const std::vector<float>>(std::move(all));
  const std::span<const float> values(*own_biases);
  gate_bias = values.first(n_gate);
  up_bias = values.subspan(n_gate, n_up);
  down_bias = values.subspan(n_gate + n_up);
}

void Mlp::load_xielu(const BlockWeights& weights) {
  const auto one = [&](FineRole role) {
    const formats::Shape& shape = weights.store().shape_of(weights.name(role));
    return weights.vector(role, shape.empty() ? shape : formats::Shape{1}).front();
  };
  xielu = {.positive = softplus_f32(one(FineRole::kXieluPositive)),
           .negative = softplus_f32(one(FineRole::kXieluNegative)),
           .slope = one(FineRole::kXieluSlope),
           .least = one(FineRole::kXieluLeast)};
  xielu.negative += xielu.slope;
}

namespace {

float xielu_f32(float x, const Mlp::Xielu& by) {
  if (x > 0) return by.positive * x * x + by.slope * x;
  return (std::expm1(std::min(x, by.least)) - x) * by.negative + by.slope * x;
}

// Columns of gate and up that stand in turn.
void part_in_turn(Matrix& gated, Matrix& raised) {
  const Matrix both = std::move(gated);
  gated = Matrix(both.rows(), both.cols() / 2);
  raised = Matrix(both.rows(), both.cols() / 2);
  for (std::size_t r = 0; r < both.rows(); ++r) {
    for (std::size_t c = 0; c < gated.cols(); ++c) {
      gated.row(r)[c] = both.row(r)[2 * c];
      raised.row(r)[c] = both.row(r)[2 * c + 1];
    }
  }
}

// Rows of this rank's gates, less what they have to be above in the whole row.
void keep_high(const StepContext& context, float deviations, Matrix& gates) {
  const auto width = static_cast<float>(gates.cols() * context.rank.tp_size());
  const auto means = [&](const auto& value_of) {
    std::vector<float> sums;
    for (std::size_t r = 0; r < gates.rows(); ++r) {
      double sum = 0;
      for (const float gate : gates.row(r)) sum += value_of(r, gate);
      sums.push_back(static_cast<float>(sum));
    }
    context.comm.all_reduce({.group = Group::kTensor, .name = "gates of a row"}, sums);
    for (float& sum : sums) sum /= width;
    return sums;
  };
  const std::vector<float> mean = means([](std::size_t, double gate) { return gate; });
  const std::vector<float> variance =
      means([&](std::size_t r, double gate) { return (gate - mean[r]) * (gate - mean[r]); });
  for (std::size_t r = 0; r < gates.rows(); ++r) {
    const float least = mean[r] + std::sqrt(variance[r]) * deviations;
    for (float& gate : gates.row(r)) gate = std::max(gate - least, 0.0F);
  }
  round_between(context.profile, gates.values());
}

// gated <- what goes into down.
void apply_gate(Profile profile, const GateForm& form, Matrix& gated, Matrix& raised) {
  const std::span<float> gates = gated.values(), ups = raised.values();
  scale_rounded(profile, form.gate_factor, gated);
  const auto limit = [&](std::span<float> of_gate) {
    for (float& value : of_gate) value = std::min(value, *form.limit);
    for (float& value : ups) value = std::clamp(value, -*form.limit, *form.limit);
  };
  if (form.gate_cap || form.up_cap) {
    for (float& gate : gates)
      gate = sigmoid_f32(gate) * (form.gate_cap ? soft_capped(gate, *form.gate_cap) : gate);
    for (float& value : ups) value = form.up_cap ? soft_capped(value, *form.up_cap) : value;
    for (std::size_t i = 0; i < gates.size(); ++i) gates[i] *= ups[i];
    round_between(profile, gates);
    return;
  }
  if (form.joins_in_f32) {
    silu_multiply(gates, ups, gates, false);
    round_between(profile, gates);
    return;
  }
  if (form.limit && !form.limits_silu) limit(gates);
  if (form.is_gelu) {
    for (float& gate : gates) gate = gelu_f32(gate);
    round_between(profile, gates);
    for (std::size_t i = 0; i < gates.size(); ++i) gates[i] *= ups[i];
    round_between(profile, gates);
    return;
  }
  if (!form.limits_silu && form.alpha == 1.0F && form.up_offset == 0) {
    silu_multiply(gates, ups, gates, profile != Profile::kF32);
    return;
  }
  std::vector<float> factors(gates.begin(), gates.end());
  for (float& factor : factors) factor *= form.alpha;
  if (form.alpha != 1.0F) round_between(profile, factors);
  for (float& factor : factors) factor = sigmoid_f32(factor);
  // transformers has silu as one operation.
  if (form.alpha != 1.0F) round_between(profile, factors);
  for (std::size_t i = 0; i < gates.size(); ++i) gates[i] *= factors[i];
  round_between(profile, gates);
  if (form.limit && form.limits_silu) limit(gates);
  if (form.up_offset != 0) {
    for (float& value : ups) value += form.up_offset;
    round_between(profile, ups);
  }
  for (std::size_t i = 0; i < gates.size(); ++i) gates[i] *= ups[i];
  round_between(profile, gates);
}

}  // namespace

Matrix Mlp::partial(const StepContext& context, const Matrix& x) const {
  if (gate.empty()) {
    Matrix inner = rounded_product(context, up, x, up_bias);
    for (float& value : inner.values()) {
      if (form.is_gelu) {
        value = gelu_f32(value);
      } else if (form.is_xielu) {
        value = xielu_f32(value, xielu);
      } else {
        value = value > 0 ? value * value : 0.0F;
      }
    }
    round_between(context.profile, inner.values());
    Matrix out = product(context, down, inner);
    add_bias(down_bias, out);
    return out;
  }
  Matrix gated = rounded_product(context, gate, x, gate_bias);
  Matrix raised;
  if (up.empty()) {
    part_in_turn(gated, raised);
  } else {
    raised = rounded_product(context, up, x, up_bias);
  }
  if (form.least_deviation) keep_high(context, *form.least_deviation, gated);
  apply_gate(context.profile, form, gated, raised);
  Matrix out = product(context, down, gated);
  add_bias(down_bias, out);
  return out;
}

Mixture::Mixture(const BlockWeights& weights, const StepContext& context,
                 const MixtureSpec& mixture, ExpertStore& experts)
    : layer_(weights.layer()),
      spec_(mixture),
      group_(context.rank, mixture.home(layer_), mixture, experts) {
  const RouterSpec& spec = spec_.router;
  const BlockWeights home(weights.store(), spec_.home(layer_));
  router_ = (spec_.blocks > 0 ? home : weights)
                .linear(Role::kRouter, spec.scored(),
                        spec.inner > 0 ? spec.inner : context.spec.hidden);
  if (spec.inner > 0) router_mlp_.emplace(weights, context, spec);
  if (weights.expects(FineRole::kRouterScale))
    router_scale_ = weights.vector(FineRole::kRouterScale, {1}).front();
  if (spec.has_table) {
    token_experts_ = weights.store().indices(weights.name(FineRole::kRouterTable),
                                             {context.spec.stored_vocab, spec.topk}, spec.experts);
  } else if (spec.bias_of_logits) {
    logit_bias_ = weights.vector(Role::kRouterBias, {spec.choices()});
  } else if (spec.correction_bias || weights.expects(Role::kRouterBias)) {
    const bool is_row = weights.has(Role::kRouterBias) &&
                        weights.store().shape_of(weights.name(Role::kRouterBias)).size() == 2;
    bias_ = weights.vector(Role::kRouterBias, is_row ? formats::Shape{1, spec.choices()}
                                                     : formats::Shape{spec.choices()});
  }
  if (weights.expects(FineRole::kMixtureBias))
    output_bias_ = weights.vector(FineRole::kMixtureBias, {context.spec.hidden});
  if (spec_.shared) load_shared(weights, context);
  if (spec_.dense) load_dense(weights, context);
  if (spec_.pool > 0) load_pool(weights, context);
  if (spec_.expert_norm) {
    expert_norm_ = hidden_norm(weights, spec_.pool > 0 ? spec_.pool : context.spec.hidden,
                               *spec_.expert_norm, {.weight = FineRole::kExpertOutputNorm});
  }
}

void Mixture::load_pool(const BlockWeights& weights, const StepContext& context) {
  const std::size_t hidden = context.spec.hidden, width = spec_.pool;
  pool_ = weights.linear(FineRole::kPoolProj, width, hidden);
  pool_norm_ = hidden_norm(weights, width, context.spec.norm, {.weight = FineRole::kPoolNorm});
  unpool_ = weights.linear(FineRole::kUnpoolProj, hidden, width);
}

void Mixture::load_dense(const BlockWeights& weights, const StepContext& context) {
  const std::size_t hidden = context.spec.hidden;
  const auto norm = [&](WeightRole role) {
    return hidden_norm(weights, hidden, context.spec.norm, {.weight = role});
  };
  const Range mine = tensor_part(context.rank, spec_.dense->width, "inner features of an MLP");
  dense_ = Mlp::load(weights, context, Mlp::kDense, *spec_.dense, mine);
  dense_norm_ = norm(Role::kPostAttentionNorm);
  dense_output_norm_ = norm(FineRole::kDenseOutputNorm);
  norm_ = norm(FineRole::kMixtureInputNorm);
  output_norm_ = norm(FineRole::kMixtureOutputNorm);
  router_norm_ = hidden_norm(weights, hidden, {.eps = context.spec.norm.eps},
                             {.weight = FineRole::kRouterInputScale});
  for (float& weight : router_norm_.weight) weight /= std::sqrt(static_cast<float>(hidden));
  expert_scale_ = weights.vector(FineRole::kRouterExpertScale, {spec_.router.experts});
}

Matrix Mixture::dense_output(const StepContext& context, const Matrix& x) const {
  Matrix out = dense_->partial(context, normed(context, x, dense_norm_));
  context.comm.all_reduce({.group = Group::kTensor, .name = "MLP sum", .layer = layer_},
                          out.values());
  round_between(context.profile, out.values());
  return normed(context, out, dense_output_norm_);
}

void Mixture::load_shared(const BlockWeights& weights, const StepContext& context) {
  if (weights.expects(Role::kSharedRouter))
    shared_gate_ = weights.linear(Role::kSharedRouter, 1, context.spec.hidden);
  const std::size_t n_weighed = spec_.router.weighed_shared;
  MlpSpec one = *spec_.shared;
  one.width /= std::max<std::size_t>(n_weighed, 1);
  const std::optional<Range> mine = group_.shared_part(context.rank, one.width);
  if (!mine) return;
  for (std::size_t i = 0; i < n_weighed; ++i) {
    shared_.push_back(Mlp::load(weights, context, Mlp::kShared, one, *mine,
                                Mlp::InStack{.matrix = i, .count = n_weighed}));
  }
  if (n_weighed > 0) return;
  shared_.push_back(Mlp::load(weights, context, Mlp::kShared, one, *mine));
  shared_.back().load_biases(weights, context, Mlp::kShared, one.width, *mine);
}

Routing Mixture::choose(const LayerStep& step, const Matrix& state) const {
  const StepContext& context = step.context;
  const Taps& taps = step.taps;
  Matrix own;
  if (!router_norm_.empty()) own = normed(context, state, router_norm_);
  if (router_mlp_) own = router_mlp_->inner(context, state, *step.carried);
  const Matrix& x = own.cols() == 0 ? state : own;
  Matrix logits(x.rows(), router_.rows());
  matmul(x.view(), router_.weight(), WeightRounding::kExact, logits.view(), context.threads);
  if (const float factor = spec_.router.logit_factor; factor != 1.0F) {
    for (float& logit : logits.values()) logit *= factor;
  }
  add_bias(logit_bias_, logits);
  require_finite(logits, layer_, "the router");
  std::vector<std::uint32_t> given;
  const std::size_t topk = spec_.router.topk;
  for (std::size_t r = 0; !token_experts_.empty() && r < x.rows(); ++r) {
    const auto at =
        token_experts_.begin() + static_cast<std::ptrdiff_t>(topk) * step.rows.tokens[r];
    given.insert(given.end(), at, at + static_cast<std::ptrdiff_t>(topk));
  }
  Routing routing = route(spec_.router, logits.view(), bias_, given);
  for (std::vector<float>* scaled : {&routing.weights, &routing.shared_weights}) {
    for (float& weight : *scaled) weight *= router_scale_;
  }
  for (std::size_t i = 0; i < routing.weights.size() && !expert_scale_.empty(); ++i)
    routing.weights[i] *= expert_scale_[routing.experts[i]];
  if (taps.router) taps.router(layer_, routing.experts, routing.weights);
  if (taps.near_ties != nullptr) taps.near_ties->router += routing.n_near_ties;
  return routing;
}

Matrix Mixture::routed_output(const StepContext& context, const Expert& expert,
                              const Matrix& rows) const {
  const Mlp mlp{.gate = expert.gate,
                .up = expert.up,
                .down = expert.down,
                .form = spec_.expert.gate,
                .gate_bias = expert.gate_bias,
                .up_bias = expert.up_bias,
                .down_bias = expert.down_bias};
  Matrix out = mlp.partial(context, rows);
  if (expert_norm_.empty()) return out;
  round_between(context.profile, out.values());
  return normed(context, out, expert_norm_);
}

Matrix Mixture::shared_output(const StepContext& context, const Matrix& x,
                              const Routing& routing) const {
  Matrix out = shared_.front().partial(context, x);
  const std::size_t n = spec_.router.weighed_shared;
  for (std::size_t i = 0; i < n; ++i) {
    const Matrix next =
        i == 0 ? std::exchange(out, Matrix(x.rows(), x.cols())) : shared_[i].partial(context, x);
    for (std::size_t r = 0; r < out.rows(); ++r) {
      const float weight = routing.shared_weights[r * n + i];
      for (std::size_t c = 0; c < out.cols(); ++c) out.row(r)[c] += weight * next.row(r)[c];
    }
  }
  if (shared_gate_.empty()) return out;
  const Matrix gate = rounded_product(context, shared_gate_, x);
  for (std::size_t r = 0; r < out.rows(); ++r) {
    const float factor = sigmoid_f32(gate.row(r)[0]);
    for (float& value : out.row(r)) value *= factor;
  }
  return out;
}

// Identity experts are behind the others, so that the sum is in the order of ids. Those that are
// skipped give nothing.
void Mixture::add_identity_experts(const Matrix& x, const Routing& routing, Matrix& sums) const {
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    const std::size_t beyond = routing.experts[i] - spec_.router.experts;  // wraps around
    if (beyond >= spec_.router.identity_experts) continue;
    const auto from = x.row(i / routing.topk);
    const auto to = sums.row(i / routing.topk);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] += routing.weights[i] * from[c];
  }
}

Matrix Mixture::forward(const LayerStep& step, const Matrix& state) const {
  const StepContext& context = step.context;
  const Routing routing = choose(step, state);
  Matrix own;
  if (!norm_.empty()) own = normed(context, state, norm_);
  if (!pool_.empty()) own = normed(context, rounded_product(context, pool_, state), pool_norm_);
  const Matrix& x = own.cols() == 0 ? state : own;
  if (step.taps.mixture) step.taps.mixture(layer_, x);
  ExpertGroup::Parts parts{
      .routed = [&](const Expert& expert,
                    const Matrix& rows) { return routed_output(context, expert, rows); },
      .shared = [&](const Matrix& rows) { return shared_output(context, rows, routing); },
      .n_tokens = step.taps.expert_tokens};
  if (step.taps.expert) {
    parts.seen = [&](std::uint32_t expert, std::span<const float> weights, const Matrix& outputs) {
      step.taps.expert(layer_, expert, weights, outputs);
    };
  }
  ExpertGroup::Sums sums = group_.run(context, x, routing, parts);
  add_identity_experts(x, routing, sums.routed);
  if (context.profile == Profile::kBf16) {
    round_between(context.profile, sums.routed.values());
    round_between(context.profile, sums.shared.values());
  }
  if (!unpool_.empty()) {
    round_between(context.profile, sums.routed.values());
    sums.routed = rounded_product(context, unpool_, sums.routed);
  }
  add_rounded(context.profile, sums.routed, sums.shared);
  if (dense_) {
    Matrix out = dense_output(context, state);
    round_between(context.profile, sums.routed.values());
    add_rounded(context.profile, out, normed(context, sums.routed, output_norm_));
    return out;
  }
  add_bias(output_bias_, sums.routed);
  return std::move(sums.routed);
}

}  // namespace ingot::inference
