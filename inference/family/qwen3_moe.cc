// Qwen3-MoE: grouped-query attention with norms on queries and keys, half-split rope over the whole
// head, a softmax gate over all experts whose chosen weights are normalized, no shared experts.

#include <cmath>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/decoder_spec.h"
#include "inference/family/family_rows.h"
#include "inference/family/rope_spec.h"

namespace ingot::inference {
namespace {

ModelSpec spec_of(const formats::ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  const formats::JsonFields fields = spec_fields(config);
  if (fields.boolean("use_sliding_window", false)) {
    throw Error(ErrorCode::kUnsupported,
                "'use_sliding_window' is true; only full attention is known")
        .in_file("config.json");
  }
  GqaSpec gqa;
  gqa.heads = static_cast<std::size_t>(config.num_attention_heads);
  gqa.kv_heads = static_cast<std::size_t>(config.num_key_value_heads);
  gqa.head_dim = static_cast<std::size_t>(config.head_dim);
  constexpr std::size_t kMost = std::size_t{1} << 16;  // so that no product wraps around
  if (gqa.heads == 0 || gqa.kv_heads == 0 || gqa.head_dim == 0 || gqa.heads > kMost ||
      gqa.head_dim > kMost || gqa.heads % gqa.kv_heads != 0) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("{} heads of {} over {} key heads make no attention", gqa.heads,
                            gqa.head_dim, gqa.kv_heads))
        .in_file("config.json");
  }
  spec.gqa = gqa;
  spec.rope = rope_spec(config.rope, gqa.head_dim, /*interleaved=*/false);
  spec.softmax_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(gqa.head_dim)));
  if (spec.router) {
    spec.router->groups = 1;
    spec.router->topk_groups = 1;
    spec.router->score = GateScore::kSoftmax;
    spec.router->normalize = fields.boolean("norm_topk_prob", false);
  }
  return spec;
}

}  // namespace

const ModelFamily kQwen3Moe = {.name = "qwen3_moe", .spec = spec_of};

}  // namespace ingot::inference
