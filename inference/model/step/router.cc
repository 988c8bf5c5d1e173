#include "inference/model/step/router.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"

namespace ingot::inference {

namespace {

// Indices of the n largest values, ties to the lower index, ascending.
void best_of(std::span<const float> values, std::size_t n, std::vector<std::uint32_t>& order) {
  order.resize(values.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto better = [&](std::uint32_t a, std::uint32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  };
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n), order.end(),
                    better);
  order.resize(n);
  std::sort(order.begin(), order.end());
}

float group_score(std::span<const float> scores, bool two_best) {
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (const float score : scores) {
    if (score > best) {
      second = best;
      best = score;
    } else {
      second = std::max(second, score);
    }
  }
  return two_best && scores.size() > 1 ? best + second : best;
}

class TokenRouter {
 public:
  TokenRouter(const RouterSpec& spec, std::span<const float> bias)
      : spec_(spec), bias_(bias), groups_(spec.groups) {}

  /// Returns whether the choice was near a tie.
  bool choose(std::span<const float> logits, std::span<std::uint32_t> experts,
              std::span<float> weights, std::span<float> shared_weights) {
    is_near_tie_ = false;
    score(logits);
    select(logits.first(spec_.choices()));
    weigh(experts, weights, shared_weights);
    return is_near_tie_;
  }

  /// Weighs the experts that are `given`; `experts` has them ascending.
  void weigh_given(std::span<const float> logits, std::span<const std::uint32_t> given,
                   std::span<std::uint32_t> experts, std::span<float> weights,
                   std::span<float> shared_weights) {
    score(logits);
    chosen_.assign(given.begin(), given.end());
    std::ranges::sort(chosen_);
    weigh(experts, weights, shared_weights);
  }

 private:
  void weigh(std::span<std::uint32_t> experts, std::span<float> weights,
             std::span<float> shared_weights) const {
    float sum = 0;
    const auto count = [&](float score) { sum += spec_.by_length ? score * score : score; };
    for (std::size_t i = 0; i < experts.size(); ++i) {
      experts[i] = chosen_[i];
      weights[i] = scores_[chosen_[i]];
      count(weights[i]);
    }
    std::ranges::copy(shared_scores_, shared_weights.begin());
    std::ranges::for_each(shared_scores_, count);
    if (spec_.by_length) sum = std::sqrt(sum);
    for (const std::span<float> all : {weights, shared_weights}) {
      for (float& weight : all) {
        if (spec_.normalize) weight /= sum + spec_.normalize_epsilon;
        weight *= spec_.scale;
      }
    }
  }

  // Phi-3.5-MoE's sparse mixer: those that are chosen have scores above 0 (transformers 5.24,
  // phimoe, sparsemixer).
  void score_by_thresholds(std::span<const float> logits) {
    constexpr float kTaken = -std::numeric_limits<float>::infinity();
    std::vector<float> left(logits.begin(), logits.end());
    std::ranges::fill(scores_, 0.0F);
    for (std::size_t i = 0; i < spec_.topk; ++i) {
      const auto best = static_cast<std::size_t>(std::ranges::max_element(left) - left.begin());
      const float most = left[best];
      float sum = 0;
      for (const float logit : left) {
        const bool is_far = (most - logit) / std::max(std::abs(logit), most) > spec_.near;
        if (logit != kTaken && !is_far) sum += exp_f32(logit - most);
      }
      scores_[best] = 1.0F / sum;
      left[best] = kTaken;
    }
  }

  void score(std::span<const float> logits) {
    scores_.assign(logits.begin(), logits.end());
    if (spec_.score == GateScore::kThresholds) {
      score_by_thresholds(logits);
    } else if (spec_.score == GateScore::kSoftmax) {
      softmax(scores_);
    } else {
      for (float& score : scores_) {
        score = spec_.score == GateScore::kSigmoid ? sigmoid_f32(score)
                                                   : std::sqrt(softplus_f32(score));
      }
    }
    const auto shared = scores_.begin() + static_cast<std::ptrdiff_t>(spec_.choices());
    shared_scores_.assign(shared, scores_.end());
    scores_.erase(shared, scores_.end());
  }

  void select(std::span<const float> logits) {
    ranked_ = scores_;
    if (spec_.ranks_logits) ranked_.assign(logits.begin(), logits.end());
    for (std::size_t e = 0; e < bias_.size(); ++e) ranked_[e] += bias_[e];
    if (spec_.groups > 1) {
      const std::size_t width = ranked_.size() / spec_.groups;
      for (std::size_t g = 0; g < spec_.groups; ++g) {
        groups_[g] = group_score(std::span(ranked_).subspan(g * width, width), !bias_.empty());
      }
      best_of(groups_, spec_.topk_groups, kept_);
      is_near_tie_ = is_near_tie(groups_, kept_);
      for (std::size_t e = 0; e < ranked_.size(); ++e) {
        if (!std::binary_search(kept_.begin(), kept_.end(), e / width)) {
          ranked_[e] = spec_.keeps_left_out ? 0.0F : -std::numeric_limits<float>::infinity();
        }
      }
    }
    best_of(ranked_, spec_.topk, chosen_);
    is_near_tie_ = is_near_tie_ || is_near_tie(ranked_, chosen_);
  }

  const RouterSpec& spec_;
  std::span<const float> bias_;
  std::vector<float> scores_, shared_scores_, ranked_, groups_;
  std::vector<std::uint32_t> kept_, chosen_;
  bool is_near_tie_ = false;
};

}  // namespace

Routing route(const RouterSpec& spec, formats::MatrixView<const float> logits,
              std::span<const float> bias, std::span<const std::uint32_t> given) {
  INGOT_CHECK(logits.cols == spec.scored() && (bias.empty() || bias.size() == spec.choices()));
  INGOT_CHECK(given.empty() || given.size() == logits.rows * spec.topk);
  Routing routing{.topk = spec.topk};
  routing.experts.resize(logits.rows * spec.topk);
  routing.weights.resize(logits.rows * spec.topk);
  routing.shared_weights.resize(logits.rows * spec.weighed_shared);
  TokenRouter router(spec, bias);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const std::span row(logits.row(r), logits.cols);
    if (std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); })) {
      throw Error(ErrorCode::kNonFinite, "the router's logits hold a NaN");
    }
    const auto experts = std::span(routing.experts).subspan(r * spec.topk, spec.topk);
    const auto weights = std::span(routing.weights).subspan(r * spec.topk, spec.topk);
    const auto shared =
        std::span(routing.shared_weights).subspan(r * spec.weighed_shared, spec.weighed_shared);
    if (!given.empty()) {
      router.weigh_given(row, given.subspan(r * spec.topk, spec.topk), experts, weights, shared);
    } else {
      routing.n_near_ties += router.choose(row, experts, weights, shared) ? 1U : 0U;
    }
  }
  return routing;
}

}  // namespace ingot::inference
