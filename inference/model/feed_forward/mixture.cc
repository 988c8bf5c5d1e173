#include "inference/model/feed_forward/mixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>

#include "formats/base/error.h"
#include "inference/kernels/vector_math.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"

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

  void choose(std::span<const float> logits, std::span<std::uint32_t> experts,
              std::span<float> weights) {
    score(logits);
    select();
    float sum = 0;
    for (std::size_t i = 0; i < experts.size(); ++i) {
      experts[i] = chosen_[i];
      weights[i] = scores_[chosen_[i]];
      sum += weights[i];
    }
    for (float& weight : weights) {
      if (spec_.normalize) weight /= sum + 1e-20F;
      weight *= spec_.scale;
    }
  }

 private:
  void score(std::span<const float> logits) {
    scores_.assign(logits.begin(), logits.end());
    if (spec_.score == GateScore::kSoftmax) {
      softmax(scores_);
    } else {
      for (float& score : scores_) score = sigmoid_f32(score);
    }
  }

  void select() {
    ranked_ = scores_;
    for (std::size_t e = 0; e < bias_.size(); ++e) ranked_[e] += bias_[e];
    if (spec_.groups > 1) {
      const std::size_t width = ranked_.size() / spec_.groups;
      for (std::size_t g = 0; g < spec_.groups; ++g) {
        groups_[g] = group_score(std::span(ranked_).subspan(g * width, width), !bias_.empty());
      }
      best_of(groups_, spec_.topk_groups, kept_);
      for (std::size_t e = 0; e < ranked_.size(); ++e) {
        if (!std::binary_search(kept_.begin(), kept_.end(), e / width)) {
          ranked_[e] = -std::numeric_limits<float>::infinity();
        }
      }
    }
    best_of(ranked_, spec_.topk, chosen_);
  }

  const RouterSpec& spec_;
  std::span<const float> bias_;
  std::vector<float> scores_, ranked_, groups_;
  std::vector<std::uint32_t> kept_, chosen_;
};

}  // namespace

Routing route(const RouterSpec& spec, formats::MatrixView<const float> logits,
              std::span<const float> bias) {
  INGOT_CHECK(logits.cols == spec.experts && (bias.empty() || bias.size() == spec.experts));
  Routing routing{.topk = spec.topk, .experts = {}, .weights = {}};
  routing.experts.resize(logits.rows * spec.topk);
  routing.weights.resize(logits.rows * spec.topk);
  TokenRouter router(spec, bias);
  for (std::size_t r = 0; r < logits.rows; ++r) {
    const std::span row(logits.row(r), logits.cols);
    if (std::any_of(row.begin(), row.end(), [](float value) { return std::isnan(value); })) {
      throw Error(ErrorCode::kNonFinite, "the router's logits hold a NaN");
    }
    router.choose(row, std::span(routing.experts).subspan(r * spec.topk, spec.topk),
                  std::span(routing.weights).subspan(r * spec.topk, spec.topk));
  }
  return routing;
}

Mlp Mlp::load(const WeightStore& weights, const StepContext& context, const std::string& prefix,
              std::size_t intermediate) {
  const std::size_t hidden = context.spec.hidden;
  const Range all{0, hidden};
  const Range mine = tensor_part(context.rank, intermediate, prefix + "*");
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
    : layer_(layer), experts_(&experts) {
  const RouterSpec& spec = *context.spec.router;
  mine_ = expert_part(context.rank, spec.experts);
  router_ = weights.linear(prefix + "gate.weight", spec.experts, context.spec.hidden);
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

// Tokens travel to the ranks of their experts and the outputs back (model reference, 12.3). Ranks
// of one tensor group hold the same tokens, so each sends its share of them.

namespace {

// One (token, expert) pair on its way: the expert's id, then the token's hidden row.
class Parcel {
 public:
  explicit Parcel(std::size_t width) : width_(width) {}

  [[nodiscard]] std::size_t n_bytes() const { return sizeof(std::uint32_t) + row_bytes(); }

  void append(std::vector<std::byte>& to, std::uint32_t expert, std::span<const float> row) const {
    const std::size_t at = to.size();
    to.resize(at + n_bytes());
    std::memcpy(to.data() + at, &expert, sizeof(expert));
    std::memcpy(to.data() + at + sizeof(expert), row.data(), row_bytes());
  }
  [[nodiscard]] std::uint32_t expert(std::span<const std::byte> from, std::size_t i) const {
    std::uint32_t expert = 0;
    std::memcpy(&expert, from.data() + i * n_bytes(), sizeof(expert));
    return expert;
  }
  void copy_row(std::span<const std::byte> from, std::size_t i, std::span<float> to) const {
    std::memcpy(to.data(), from.data() + i * n_bytes() + sizeof(std::uint32_t), row_bytes());
  }

 private:
  [[nodiscard]] std::size_t row_bytes() const { return width_ * sizeof(float); }
  std::size_t width_;
};

// The rows that a rank of the tensor group sends.
Range own_rows(const RankView& rank, std::size_t n_rows) {
  const std::size_t each = n_rows / rank.tp_size, more = n_rows % rank.tp_size;
  return {.first = rank.tp_rank * each + std::min(rank.tp_rank, more),
          .count = each + (rank.tp_rank < more ? 1 : 0)};
}

// Where a parcel came from: rank and place in what that rank sent.
struct Origin {
  std::size_t rank = 0, place = 0;
};

}  // namespace

Matrix Mixture::exchanged_experts(const StepContext& context, const Matrix& x,
                                  const Routing& routing) const {
  const RankView& rank = context.rank;
  const Parcel parcel(x.cols());
  const Range rows = own_rows(rank, x.rows());
  std::vector<std::vector<std::byte>> outgoing(rank.ep_size);
  std::vector<Origin> went_to(rows.count * routing.topk);
  for (std::size_t i = 0; i < went_to.size(); ++i) {
    const std::size_t place = rows.first * routing.topk + i;
    const std::uint32_t expert = routing.experts[place];
    auto& bytes = outgoing[expert / mine_.count];
    went_to[i] = {.rank = expert / mine_.count, .place = bytes.size() / parcel.n_bytes()};
    parcel.append(bytes, expert, x.row(place / routing.topk));
  }
  const auto arrived = context.comm.all_to_all_v(Group::kExpert, outgoing);

  std::map<std::uint32_t, std::vector<Origin>> by_expert;
  std::vector<std::vector<std::byte>> answers(rank.ep_size);
  for (std::size_t from = 0; from < arrived.size(); ++from) {
    const std::size_t n = arrived[from].size() / parcel.n_bytes();
    answers[from].resize(n * x.cols() * sizeof(float));
    for (std::size_t i = 0; i < n; ++i) {
      by_expert[parcel.expert(arrived[from], i)].push_back({.rank = from, .place = i});
    }
  }
  std::vector<std::uint32_t> needed;
  for (const auto& [expert, origins] : by_expert) needed.push_back(expert);
  experts_->prefetch(layer_, needed);
  for (const auto& [expert, origins] : by_expert) {
    INGOT_CHECK(expert - mine_.first < mine_.count);
    Matrix in(origins.size(), x.cols());
    for (std::size_t i = 0; i < origins.size(); ++i) {
      parcel.copy_row(arrived[origins[i].rank], origins[i].place, in.row(i));
    }
    const Matrix out = run_expert(context, expert, in);
    for (std::size_t i = 0; i < origins.size(); ++i) {
      std::memcpy(answers[origins[i].rank].data() + origins[i].place * x.cols() * sizeof(float),
                  out.row(i).data(), x.cols() * sizeof(float));
    }
  }
  const auto returned = context.comm.all_to_all_v(Group::kExpert, answers);

  // Places of a token are in ascending expert id, so are its additions.
  Matrix mine(rows.count, x.cols());
  std::vector<float> output(x.cols());
  for (std::size_t i = 0; i < went_to.size(); ++i) {
    std::memcpy(output.data(),
                returned[went_to[i].rank].data() + went_to[i].place * x.cols() * sizeof(float),
                x.cols() * sizeof(float));
    const float weight = routing.weights[rows.first * routing.topk + i];
    const auto to = mine.row(i / routing.topk);
    for (std::size_t c = 0; c < to.size(); ++c) to[c] += weight * output[c];
  }
  const std::vector<float> all = context.comm.all_gather(Group::kTensor, mine.values());
  Matrix sum(x.rows(), x.cols());
  INGOT_CHECK(all.size() == sum.values().size());
  std::ranges::copy(all, sum.values().begin());
  return sum;
}

}  // namespace ingot::inference
