#include "inference/model/feed_forward/mlp.h"

#include "inference/kernels/vector_math.h"
#include "inference/parallel/split.h"

namespace ingot::inference {

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
  Matrix gated(x.rows(), gate.rows()), raised(x.rows(), up.rows()), out(x.rows(), down.rows());
  gate.apply(x.view(), gated.view(), context.threads);
  up.apply(x.view(), raised.view(), context.threads);
  round_between(context.profile, gated.values());
  round_between(context.profile, raised.values());
  silu_multiply(gated.values(), raised.values(), gated.values(), context.profile != Profile::kF32);
  down.apply(gated.view(), out.view(), context.threads);
  return out;
}

}  // namespace ingot::inference
