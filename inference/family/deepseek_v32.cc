// DeepSeek-V3.2: V3 with sparse attention. Its indexer rotates half-split pairs although latent
// attention rotates interleaved ones, and its reference code scores with FP8 keys after a Hadamard
// transform.

#include <bit>

#include "formats/base/error.h"
#include "inference/family/decoder_spec.h"
#include "inference/family/family_rows.h"

namespace ingot::inference {
namespace {

ModelSpec spec_of(const formats::ModelConfig& config) {
  ModelSpec spec = decoder_spec(config);
  add_latent_attention(config, spec);
  add_indexer(config, /*interleaved=*/false, spec);
  if (!std::has_single_bit(spec.indexer->head_dim)) {
    throw Error(ErrorCode::kUnsupported,
                "'index_head_dim' is no power of two, as the Hadamard transform needs")
        .in_file("config.json");
  }
  spec.indexer->hadamard_fp8 = true;
  set_sigmoid_router(config, spec);
  return spec;
}

}  // namespace

const ModelFamily kDeepseekV32 = {.name = "deepseek_v32", .spec = spec_of};

}  // namespace ingot::inference
