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

Mlp Mlp::load(const WeightStore& weights, const StepContext& context, const std::string& prefix,
              std::size_t intermediate, Range mine) {
  const std::size_t hidden = context.spec.hidden;
  const Range all{0, hidden};
  return {.gate = weights.linear(prefix + "gate_proj.weight", intermediate, hidden, mine, all),
          .up = weights.linear(prefix + "up_proj.weight", intermediate, hidden, mine, all),
          .down = weights.linear(prefix + "down_proj.weight", hidden, intermediate, all, mine)};
}

Matrix Mlp::partial(const StepContext& context, const Matrix& x) const {
  Matrix gated = rounded_product(context, gate, x);
  const Matrix raised = rounded_product(context, up, x);
  silu_multiply(gated.values(), raised.values(), gated.values(), context.profile != Profile::kF32);
  return product(context, down, gated);
}

Mixture::Mixture(const WeightStore& weights, const StepContext& context, const std::string& prefix,
                 std::uint32_t layer, ExpertStore& experts)
    : layer_(layer),
      places_(context.rank, context.spec.router->experts, layer),
      experts_(&experts) {
  const RouterSpec& spec = *context.spec.router;
  const RankView& rank = context.rank;
  router_ = weights.linear(prefix + "gate.weight", spec.experts, context.spec.hidden);
  const std::string bias = prefix + "gate.e_score_correction_bias";
  // By presence, not by the name of the model.
  if (spec.correction_bias || weights.has(bias)) bias_ = weights.vector(bias, {spec.experts});

  const std::size_t width = context.spec.shared_intermediate;
  if (width == 0) return;
  const std::string module = prefix + "shared_experts.";
  if (places_.places_shared()) {
    shared_in_ = Shared::kSlot;
    const auto id = static_cast<std::uint32_t>(spec.experts);
    if (places_.holds(rank.at().ep_rank, id))
      shared_ = Mlp::load(weights, context, module, width, expert_part(rank, width));
  } else {
    shared_in_ = rank.shared_is_whole ? Shared::kWhole : Shared::kSlices;
    const Range mine =
        rank.shared_is_whole ? Range{0, width} : tensor_part(rank, width, module + "*");
    shared_ = Mlp::load(weights, context, module, width, mine);
  }
}

Routing Mixture::choose(const StepContext& context, const Matrix& x) const {
  Matrix logits(x.rows(), router_.rows());
  matmul(x.view(), router_.weight(), WeightRounding::kExact, logits.view(), context.threads);
  require_finite(logits, layer_, "the router");
  return route(*context.spec.router, logits.view(), bias_);
}

// Every token uses a shared expert that stands in a slot, with weight 1 and behind the others.
Routing Mixture::with_shared(const Routing& chosen) const {
  const auto id = static_cast<std::uint32_t>(router_.rows());
  Routing routing{.topk = chosen.topk + 1, .experts = {}, .weights = {}};
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
  if (!places_.is_routed(expert)) return shared_->partial(context, rows);
  const std::shared_ptr<const Expert> held = experts_->get(layer_, expert);
  const Mlp mlp{.gate = held->gate, .up = held->up, .down = held->down};
  return mlp.partial(context, rows);
}

void Mixture::prefetch(std::span<const std::uint32_t> experts) const {
  std::vector<std::uint32_t> routed;
  std::ranges::copy_if(experts, std::back_inserter(routed),
                       [&](std::uint32_t expert) { return places_.is_routed(expert); });
  experts_->prefetch(layer_, routed);
}

ExpertSums Mixture::own_experts(const StepContext& context, const Matrix& x, const Routing& routing,
                                const Taps& taps) const {
  const RankView& rank = context.rank;
  // For each of this rank's experts, where in the routing a token uses it.
  std::map<std::uint32_t, std::vector<std::size_t>> used_at;
  const std::vector<std::uint32_t> ep_ranks = places_.assign(routing.experts);
  for (std::size_t i = 0; i < routing.experts.size(); ++i) {
    if (ep_ranks[i] == rank.at().ep_rank) used_at[routing.experts[i]].push_back(i);
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
    Matrix out = run_expert(context, expert, rows, taps);
    // Slices of an output are not rounded before they are added.
    if (rank.topology.etp == 1) round_between(context.profile, out.values());
    for (std::size_t i = 0; i < uses.size(); ++i) {
      sums.add(uses[i] / routing.topk, expert, routing.weights[uses[i]], out.row(i));
    }
  }
  return sums;
}

Matrix Mixture::forward(const StepContext& context, const Matrix& x, const Taps& taps) const {
  Routing routing = choose(context, x);
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
    Matrix shared =
        shared_in_ == Shared::kSlot || !shared_ ? Matrix() : shared_->partial(context, x);
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
      sums.shared = shared_->partial(context, x);
    // transformers rounds the routed sum and the shared output each; the sum of a native deployment
    // is FP32 throughout.
    if (shared_is_partial && context.profile != Profile::kBf16) {
      add(sums.routed, std::exchange(sums.shared, Matrix()));
    } else if (shared_is_partial) {
      reduce("shared expert sum", sums.shared);
    }
    reduce("expert sum", sums.routed);
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
