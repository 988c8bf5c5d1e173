#include "inference/model/attention/expert_projections.h"

#include <algorithm>

#include "formats/base/error.h"
#include "inference/kernels/matmul.h"

namespace ingot::inference {

using formats::FineRole;

namespace {

// A token's place among the chosen experts of all tokens.
struct Slot {
  std::size_t row = 0, place = 0;
};

// For each expert the slots that chose it, ascending by row.
std::vector<std::vector<Slot>> slots_of(const Routing& routing, std::size_t n_experts) {
  std::vector<std::vector<Slot>> slots(n_experts);
  for (std::size_t i = 0; i < routing.experts.size(); ++i)
    slots[routing.experts[i]].push_back({i / routing.topk, i % routing.topk});
  return slots;
}

}  // namespace

ExpertProjections::ExpertProjections(const BlockWeights& weights, const StepContext& context,
                                     const GroupedSpec& spec)
    : router_spec_{.experts = spec.experts, .topk = spec.heads / spec.kv_heads, .normalize = true},
      kv_heads_(spec.kv_heads),
      head_dim_(spec.head_dim) {
  if (context.rank.tp_size() > 1) {
    throw Error(ErrorCode::kUnsupported,
                "layer {} has experts in its attention, which is not divided over the {} ranks of "
                "a tensor group (use --ranks joined, or expert and pipeline ranks)",
                weights.layer(), context.rank.tp_size());
  }
  const std::size_t hidden = context.spec.hidden, width = kv_heads_ * head_dim_;
  router_ = weights.linear(FineRole::kAttentionRouter, spec.experts, hidden);
  const auto read = [&](FineRole role, std::size_t rows, std::size_t cols) {
    std::vector<LinearPart> parts;
    for (std::size_t e = 0; e < spec.experts; ++e) {
      parts.push_back({.name = weights.name(role),
                       .whole = {spec.experts, rows, cols},
                       .matrix = e,
                       .rows = {0, rows},
                       .cols = {0, cols}});
    }
    return weights.store().read(parts, context.threads);
  };
  in_ = read(FineRole::kExpertQueries, width, hidden);
  out_ = read(FineRole::kExpertOutputs, hidden, width);
  bias_ = weights.vector(FineRole::kAttentionExpertsBias, {hidden});
}

Routing ExpertProjections::choose(const StepContext& context, const Matrix& x) const {
  Matrix logits(x.rows(), router_.rows());
  matmul(x.view(), router_.weight(), WeightRounding::kExact, logits.view(), context.threads);
  return route(router_spec_, logits.view(), {});
}

Matrix ExpertProjections::queries(const StepContext& context, const Matrix& x,
                                  const Routing& routing) const {
  const std::size_t topk = router_spec_.topk;
  Matrix heads(x.rows(), kv_heads_ * topk * head_dim_);
  const auto slots = slots_of(routing, in_.size());
  for (std::size_t e = 0; e < in_.size(); ++e) {
    if (slots[e].empty()) continue;
    Matrix rows(slots[e].size(), x.cols());
    for (std::size_t i = 0; i < slots[e].size(); ++i)
      std::ranges::copy(x.row(slots[e][i].row), rows.row(i).begin());
    const Matrix made = rounded_product(context, in_[e], rows);
    for (std::size_t i = 0; i < slots[e].size(); ++i) {
      const auto [row, place] = slots[e][i];
      for (std::size_t h = 0; h < kv_heads_; ++h) {
        std::ranges::copy(made.row(i).subspan(h * head_dim_, head_dim_),
                          heads.row(row).subspan((h * topk + place) * head_dim_).begin());
      }
    }
  }
  return heads;
}

Matrix ExpertProjections::outputs(const StepContext& context, const Matrix& attended,
                                  const Routing& routing) const {
  const std::size_t topk = router_spec_.topk;
  Matrix sums(attended.rows(), bias_.size());
  const auto slots = slots_of(routing, out_.size());
  for (std::size_t e = 0; e < out_.size(); ++e) {
    if (slots[e].empty()) continue;
    Matrix rows(slots[e].size(), kv_heads_ * head_dim_);
    for (std::size_t i = 0; i < slots[e].size(); ++i) {
      const auto [row, place] = slots[e][i];
      for (std::size_t h = 0; h < kv_heads_; ++h) {
        std::ranges::copy(attended.row(row).subspan((h * topk + place) * head_dim_, head_dim_),
                          rows.row(i).subspan(h * head_dim_).begin());
      }
    }
    const Matrix made = rounded_product(context, out_[e], rows);
    for (std::size_t i = 0; i < slots[e].size(); ++i) {
      const auto [row, place] = slots[e][i];
      const float weight = routing.weights[row * topk + place];
      for (std::size_t c = 0; c < sums.cols(); ++c) sums.row(row)[c] += weight * made.row(i)[c];
    }
  }
  add_bias(bias_, sums);
  return sums;
}

}  // namespace ingot::inference
