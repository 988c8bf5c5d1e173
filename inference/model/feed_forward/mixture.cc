#include "inference/model/feed_forward/mixture.h"

#include <algorithm>
#include <iterator>
#include <map>
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

namespace {

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

// gated <- what goes into down.
void apply_gate(Profile profile, const GateForm& form, Matrix& gated, Matrix& raised) {
  const std::span<float> gates = gated.values(), ups = raised.values();
  const auto limit = [&](std::span<float> of_gate) {
    for (float& value : of_gate) value = std::min(value, *form.limit);
    for (float& value : ups) value = std::clamp(value, -*form.limit, *form.limit);
  };
  if (form.limit && !form.limits_silu) limit(gates);
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
    Matrix squares = rounded_product(context, up, x);
    for (float& value : squares.values()) value = value > 0 ? value * value : 0.0F;
    round_between(context.profile, squares.values());
    return product(context, down, squares);
  }
  Matrix gated = rounded_product(context, gate, x, gate_bias);
  Matrix raised;
  if (up.empty()) {
    part_in_turn(gated, raised);
  } else {
    raised = rounded_product(context, up, x, up_bias);
  }
  apply_gate(context.profile, form, gated, raised);
  Matrix out = product(context, down, gated);
  add_bias(down_bias, out);
  return out;
}

Mixture::Mixture(const BlockWeights& weights, const StepContext& context,
                 const MixtureSpec& mixture, ExpertStore& experts)
    : layer_(weights.layer()),
      spec_(mixture),
      places_(context.rank, mixture.router.experts, layer_),
      experts_(&experts) {
  const RouterSpec& spec = spec_.router;
  const RankView& rank = context.rank;
  if ((spec.scales_input || spec.identity_experts > 0) && !rank.experts_meet_in_tensor_group()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("experts {} are not computed for tokens that travel (--ep no larger "
                            "than --tp)",
                            spec.scales_input ? "whose input is weighed" : "without tensors"));
  }
  router_ = weights.linear(Role::kRouter, spec.scored(), context.spec.hidden);
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
  if (spec_.shared) load_shared(weights, context);
}

void Mixture::load_shared(const BlockWeights& weights, const StepContext& context) {
  const RankView& rank = context.rank;
  const std::size_t n_weighed = spec_.router.weighed_shared;
  MlpSpec one = *spec_.shared;
  one.width /= std::max<std::size_t>(n_weighed, 1);
  const auto load = [&](const Range& mine) {
    for (std::size_t i = 0; i < n_weighed; ++i) {
      shared_.push_back(Mlp::load(weights, context, Mlp::kShared, one, mine,
                                  Mlp::InStack{.matrix = i, .count = n_weighed}));
    }
    if (n_weighed == 0) shared_.push_back(Mlp::load(weights, context, Mlp::kShared, one, mine));
  };
  if (weights.expects(Role::kSharedRouter))
    shared_gate_ = weights.linear(Role::kSharedRouter, 1, context.spec.hidden);
  if (!places_.places_shared()) {
    shared_in_ = rank.shared_is_whole ? Shared::kWhole : Shared::kSlices;
    load(rank.shared_is_whole ? Range{0, one.width}
                              : tensor_part(rank, one.width, "inner features of a shared expert"));
    return;
  }
  if (n_weighed > 0) {
    throw Error(ErrorCode::kUnsupported,
                "shared experts that the router weighs are not computed in slots of an expert map");
  }
  shared_in_ = Shared::kSlot;
  const auto id = static_cast<std::uint32_t>(spec_.router.experts);
  if (places_.holds(rank.at().ep_rank, id)) load(expert_part(rank, one.width));
}

Routing Mixture::choose(const StepContext& context, const Matrix& x,
                        std::span<const std::int32_t> tokens) const {
  Matrix logits(x.rows(), router_.rows());
  matmul(x.view(), router_.weight(), WeightRounding::kExact, logits.view(), context.threads);
  add_bias(logit_bias_, logits);
  require_finite(logits, layer_, "the router");
  std::vector<std::uint32_t> given;
  const std::size_t topk = spec_.router.topk;
  for (std::size_t r = 0; !token_experts_.empty() && r < x.rows(); ++r) {
    const auto at = token_experts_.begin() + static_cast<std::ptrdiff_t>(topk) * tokens[r];
    given.insert(given.end(), at, at + static_cast<std::ptrdiff_t>(topk));
  }
  Routing routing = route(spec_.router, logits.view(), bias_, given);
  for (std::vector<float>* scaled : {&routing.weights, &routing.shared_weights}) {
    for (float& weight : *scaled) weight *= router_scale_;
  }
  return routing;
}

// Every token uses a shared expert that stands in a slot, with weight 1 and behind the others.
Routing Mixture::with_shared(const Routing& chosen) const {
  const auto id = static_cast<std::uint32_t>(router_.rows());
  Routing routing{.topk = chosen.topk + 1};
  for (std::size_t i = 0; i < chosen.experts.size(); ++i) {
    routing.experts.push_back(chosen.experts[i]);
    routing.weights.push_back(chosen.weights[i]);
    if ((i + 1) % chosen.topk != 0) continue;
    routing.experts.push_back(id);
    routing.weights.push_back(1.0F);
  }
  return routing;
}

Matrix Mixture::run_expert(const StepContext& context, std::uint32_t expert, const Matrix& rows,
                           const Taps& taps) const {
  if (taps.expert_tokens != nullptr) *taps.expert_tokens += rows.rows();
  if (!places_.is_routed(expert)) return shared_output(context, rows);
  const std::shared_ptr<const Expert> held = experts_->get(layer_, expert);
  const Mlp mlp{.gate = held->gate,
                .up = held->up,
                .down = held->down,
                .form = spec_.expert.gate,
                .gate_bias = held->gate_bias,
                .up_bias = held->up_bias,
                .down_bias = held->down_bias};
  return mlp.partial(context, rows);
}

Matrix Mixture::shared_output(const StepContext& context, const Matrix& x,
                              std::span<const float> shared_weights) const {
  Matrix out = shared_.front().partial(context, x);
  const std::size_t n = shared_weights.empty() ? 0 : shared_.size();
  for (std::size_t i = 0; i < n; ++i) {
    const Matrix next =
        i == 0 ? std::exchange(out, Matrix(x.rows(), x.cols())) : shared_[i].partial(context, x);
    for (std::size_t r = 0; r < out.rows(); ++r) {
      const float weight = shared_weights[r * n + i];
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

void Mixture::prefetch(std::span<const std::uint32_t> experts) const {
  std::vector<std::uint32_t> routed;
  std::ranges::copy_if(experts, std::back_inserter(routed),
                       [&](std::uint32_t expert) { return places_.is_routed(expert); });
  experts_->prefetch(layer_, routed);
}

bool Mixture::is_identity(std::uint32_t expert) const {
  return spec_.router.identity_experts > 0 && expert >= spec_.router.experts;
}

// They stand behind the others, so that the order of the sum is that of ids.
void Mixture::add_identity_experts(const Matrix& x, const Routing& routing, Matrix& sums) const {
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    if (!is_identity(routing.experts[i])) continue;
    const auto from = x.row(i / routing.topk);
    const auto to = sums.row(i / routing.topk);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] += routing.weights[i] * from[c];
  }
}

ExpertSums Mixture::own_experts(const StepContext& context, const Matrix& x, const Routing& routing,
                                const Taps& taps) const {
  const RankView& rank = context.rank;
  // For each of this rank's experts, where in the routing a token uses it.
  std::map<std::uint32_t, std::vector<std::size_t>> used_at;
  std::vector<std::size_t> uses_of_tensors;
  std::vector<std::uint32_t> with_tensors;
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    if (is_identity(routing.experts[i])) continue;
    uses_of_tensors.push_back(i);
    with_tensors.push_back(routing.experts[i]);
  }
  const std::vector<std::uint32_t> ep_ranks = places_.assign(with_tensors);
  for (std::size_t i = 0; i < with_tensors.size(); ++i) {
    if (ep_ranks[i] == rank.at().ep_rank) used_at[with_tensors[i]].push_back(uses_of_tensors[i]);
  }
  std::vector<std::uint32_t> needed;
  for (const auto& [expert, uses] : used_at) needed.push_back(expert);
  prefetch(needed);

  ExpertSums sums(places_, x.rows(), x.cols());
  for (const auto& [expert, uses] : used_at) {
    Matrix rows(uses.size(), x.cols());
    for (std::size_t i = 0; i < uses.size(); ++i) {
      std::ranges::copy(x.row(uses[i] / routing.topk), rows.row(i).begin());
    }
    // Input that is weighed gives output that is not.
    const bool weighs_input = spec_.router.scales_input && places_.is_routed(expert);
    for (std::size_t i = 0; weighs_input && i < uses.size(); ++i) {
      for (float& value : rows.row(i)) value *= routing.weights[uses[i]];
    }
    if (weighs_input) round_between(context.profile, rows.values());
    Matrix out = run_expert(context, expert, rows, taps);
    // Slices of an output are not rounded before they are added.
    if (rank.topology.etp == 1) round_between(context.profile, out.values());
    for (std::size_t i = 0; i < uses.size(); ++i) {
      sums.add(uses[i] / routing.topk, expert, weighs_input ? 1.0F : routing.weights[uses[i]],
               out.row(i));
    }
  }
  return sums;
}

Matrix Mixture::forward(const StepContext& context, const Matrix& x,
                        std::span<const std::int32_t> tokens, const Taps& taps) const {
  Routing routing = choose(context, x, tokens);
  if (taps.router) taps.router(layer_, routing.experts, routing.weights);
  if (taps.near_ties != nullptr) taps.near_ties->router += routing.n_near_ties;
  if (shared_in_ == Shared::kSlot) routing = with_shared(routing);
  const auto reduce = [&](const char* name, Matrix& sums) {
    context.comm.all_reduce({.group = Group::kTensor, .name = name, .layer = layer_},
                            sums.values());
  };
  const auto add = [](Matrix& to, const Matrix& what) {
    for (std::size_t i = 0; i < what.values().size(); ++i) to.values()[i] += what.values()[i];
  };
  const bool travel = !context.rank.experts_meet_in_tensor_group();
  // What this rank has of the shared expert is a share of the sum over the tensor group.
  const bool shared_is_partial =
      shared_in_ == Shared::kSlices || (shared_in_ == Shared::kSlot && !travel);
  ExpertSums sums;
  if (travel) {
    ExpertExchange exchange(context, layer_, places_, x, routing);
    // While tokens travel.
    Matrix shared = shared_in_ == Shared::kSlot || shared_.empty()
                        ? Matrix()
                        : shared_output(context, x, routing.shared_weights);
    prefetch(exchange.receive());
    exchange.answer([&](std::uint32_t expert, const Matrix& rows) {
      return run_expert(context, expert, rows, taps);
    });
    // While outputs travel.
    if (shared_is_partial) reduce("shared expert sum", shared);
    sums = exchange.finish();
    if (shared_in_ != Shared::kSlot) sums.shared = std::move(shared);
  } else {
    sums = own_experts(context, x, routing, taps);
    if (shared_in_ == Shared::kSlices || shared_in_ == Shared::kWhole)
      sums.shared = shared_output(context, x, routing.shared_weights);
    // transformers rounds the routed sum and the shared output each; the sum of a native deployment
    // is FP32 throughout.
    if (shared_is_partial && context.profile != Profile::kBf16) {
      add(sums.routed, std::exchange(sums.shared, Matrix()));
    } else if (shared_is_partial) {
      reduce("shared expert sum", sums.shared);
    }
    reduce("expert sum", sums.routed);
    add_identity_experts(x, routing, sums.routed);
  }
  if (context.profile == Profile::kBf16) {
    round_between(context.profile, sums.routed.values());
    round_between(context.profile, sums.shared.values());
  }
  add(sums.routed, sums.shared);
  round_between(context.profile, sums.routed.values());
  return std::move(sums.routed);
}

}  // namespace ingot::inference
