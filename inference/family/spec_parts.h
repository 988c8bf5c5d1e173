#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/json/json_fields.h"
#include "inference/family/model_family.h"

// What families of the same kind read alike from config.json. All of it refuses naming the key.

namespace ingot::inference {

/// The most layers, experts and entries of lists that are plausible.
inline constexpr std::uint64_t kMaxCount = std::uint64_t{1} << 20;

[[noreturn]] void refuse(ErrorCode code, const std::string& message);
/// kCorrupt.
[[noreturn]] void refuse(const std::string& message);

/// The value, which must not be 0.
std::size_t required(std::uint64_t value, std::string_view key);
/// Numbers of heads and widths of one: products of two must not wrap around, and tables of a width
/// are made before any tensor could contradict it.
std::size_t of_heads(std::uint64_t value, std::string_view key);

/// Keys of config.json that only the forward pass needs.
formats::JsonFields spec_fields(const formats::ModelConfig& config);
/// One of them, a whole number: present, and not 0.
std::size_t needed(const formats::JsonFields& fields, const char* key,
                   std::uint64_t most = kMaxCount);
/// kUnsupported for another text; the key may be missing.
void require_text(const formats::JsonFields& fields, const char* key, std::string_view only);
/// What weights of experts are multiplied with; 1 where nothing is said.
float routed_scale(const formats::JsonFields& fields);

/// What every family has: widths, layers, norms, router sizes.
ModelSpec decoder_spec(const formats::ModelConfig& config);
/// Latent attention; rope is interleaved unless `rope_interleave` says otherwise. Without positions
/// the slice that would be rotated is not, and may be empty.
void add_latent_attention(const formats::ModelConfig& config, ModelSpec& spec,
                          bool has_positions = true);
/// Grouped-query attention with half-split rope over whole heads.
void add_grouped_attention(const formats::ModelConfig& config, ModelSpec& spec);
/// `interleaved` is its rope layout where the config does not say.
void add_indexer(const formats::ModelConfig& config, bool interleaved, ModelSpec& spec);
/// The sigmoid gate of DeepSeek-V3: selection by score + correction bias, groups by their two best,
/// weights normalized and scaled.
void set_sigmoid_router(const formats::ModelConfig& config, ModelSpec& spec);
/// Hyper-connections (`hc_*`), with the model's epsilon.
HyperSpec hyper_spec(const formats::JsonFields& fields, const ModelSpec& spec);
/// For families whose layers for prediction are not of the kind that MtpLayer computes.
void leave_out_mtp(ModelSpec& spec);

/// Families that stand in other files.
ModelSpec deepseek_v4(const formats::ModelConfig& config);
ModelSpec qwen3_next(const formats::ModelConfig& config);
ModelSpec qwen3_5_moe(const formats::ModelConfig& config);
ModelSpec kimi_linear(const formats::ModelConfig& config);
ModelSpec bailing_hybrid(const formats::ModelConfig& config);
ModelSpec glm5_next(const formats::ModelConfig& config);
ModelSpec nemotron_h(const formats::ModelConfig& config);

}  // namespace ingot::inference
