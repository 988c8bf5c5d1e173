#pragma once

#include <cstddef>
#include <string_view>

#include "formats/config/model_config.h"
#include "formats/json/json_fields.h"
#include "inference/model/step/step.h"

namespace ingot::inference {

/// Keys of config.json that only the forward pass needs. `config` must outlive the result.
formats::JsonFields spec_fields(const formats::ModelConfig& config);

/// kUnsupported naming the key unless its value is `only` (or it is missing).
void require_text(const formats::JsonFields& fields, const char* key, std::string_view only);

/// `routed_scaling_factor`, 1 when it is missing.
float routed_scale(const formats::JsonFields& fields);

/// What every family has: widths, layers, norms, router sizes. kCorrupt naming a key that is
/// missing, 0, or that contradicts another (more experts per token than experts, groups that do not
/// divide them).
ModelSpec decoder_spec(const formats::ModelConfig& config);

/// Adds latent attention with its rope and softmax scale, in place. Interleaved unless
/// `rope_interleave` says otherwise.
void add_latent_attention(const formats::ModelConfig& config, ModelSpec& spec);

/// Adds the indexer of sparse attention. `interleaved` is its rope layout where the config does not
/// say (`indexer_rope_interleave`).
void add_indexer(const formats::ModelConfig& config, bool interleaved, ModelSpec& spec);

/// The sigmoid gate of DeepSeek-V3: selection by score + correction bias, groups by their two best,
/// weights normalized (`norm_topk_prob`) and scaled.
void set_sigmoid_router(const formats::ModelConfig& config, ModelSpec& spec);

/// Frequencies of the pairs of a rotated slice of `dim` values, with YaRN where the config has it
/// (whatever the length of the context), computed in FP32 as transformers does. kUnsupported naming
/// the type for any scaling but default and yarn, kCorrupt for numbers that make no table.
RopeSpec rope_spec(const formats::RopeConfig& config, std::size_t dim, bool interleaved);

/// What YaRN multiplies the softmax scale by: g(factor, mscale_all_dim) squared, 1 without.
double yarn_softmax_factor(const formats::RopeConfig& config);

}  // namespace ingot::inference
