// DeepSeek-V2: softmax gate without correction bias, groups by their best expert, and queries
// without low rank in the Lite model.

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/decoder_spec.h"
#include "inference/family/family_rows.h"

namespace ingot::inference {
namespace {

ModelSpec spec_of(const formats::ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  if (!spec.router) return spec;
  const formats::JsonFields fields = spec_fields(config);
  require_text(fields, "scoring_func", "softmax");
  const std::string method = fields.text("topk_method", "greedy");
  if (method == "greedy") {
    spec.router->groups = 1;
    spec.router->topk_groups = 1;
  } else if (method != "group_limited_greedy") {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("'topk_method' is '{}'; this family knows greedy and "
                            "group_limited_greedy",
                            method))
        .in_file("config.json");
  }
  spec.router->score = GateScore::kSoftmax;
  // Its code either normalizes or scales, never both.
  spec.router->normalize = fields.boolean("norm_topk_prob", false) && spec.router->topk > 1;
  spec.router->scale = spec.router->normalize ? 1.0F : routed_scale(fields);
  return spec;
}

}  // namespace

const ModelFamily kDeepseekV2 = {.name = "deepseek_v2", .spec = spec_of};

}  // namespace ingot::inference
