#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "formats/config/model_config.h"

namespace ingot::inference {

/// Rotary position embedding of the last (MLA) or first (indexer, GQA) values of a head.
struct RopeSpec {
  std::size_t dim = 0;       ///< values that are rotated; frequencies per pair: dim / 2
  bool interleaved = false;  ///< pairs (2i, 2i + 1); else (i, i + dim / 2)
  std::vector<float> freqs;  ///< [dim / 2], YaRN applied
  float magnitude = 1.0F;    ///< on cos and sin
};

/// Multi-head latent attention.
struct MlaSpec {
  std::size_t heads = 0, q_lora = 0, kv_lora = 0, nope = 0, rope_dim = 0, v = 0;
  float latent_norm_eps = 1e-6F;  ///< of q_a_layernorm and kv_a_layernorm
};

/// Grouped-query attention with RMS norms on the queries and keys of every head.
struct GqaSpec {
  std::size_t heads = 0, kv_heads = 0, head_dim = 0;
};

/// The lightning indexer of sparse attention.
struct IndexerSpec {
  std::size_t heads = 0, head_dim = 0, topk = 0;
  RopeSpec rope;
  std::vector<bool> own;  ///< per layer: computes a selection; else takes that of the last that did
  bool hadamard_fp8 = false;       ///< what the reference code does in profile kNative
  bool power_of_two_keys = false;  ///< scales of FP8 keys (scale_fmt ue8m0)
};

enum class GateScore : std::uint8_t { kSigmoid, kSoftmax };

struct RouterSpec {
  std::size_t experts = 0, topk = 0, groups = 1, topk_groups = 1;
  GateScore score = GateScore::kSoftmax;
  bool correction_bias = false;
  bool normalize = false;
  float scale = 1.0F;
};

/// All numbers that the forward pass needs, read once from config.json.
struct ModelSpec {
  std::string_view family;
  std::size_t vocab = 0, hidden = 0, layers = 0, mtp_layers = 0;
  std::size_t dense_intermediate = 0, moe_intermediate = 0, shared_intermediate = 0;
  std::size_t max_positions = 0;
  float norm_eps = 1e-6F;
  bool tied_head = false;
  std::optional<MlaSpec> mla;
  std::optional<GqaSpec> gqa;
  RopeSpec rope;
  float softmax_scale = 1.0F;
  std::optional<IndexerSpec> indexer;
  std::optional<RouterSpec> router;
  std::vector<bool> is_moe;  ///< per layer, MTP layers included
};

}  // namespace ingot::inference
