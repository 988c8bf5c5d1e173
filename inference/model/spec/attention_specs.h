#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

// The numbers of config.json that each kind of attention needs.

namespace ingot::inference {

/// Rotary position embedding of the last (MLA) or first (indexer, GQA) values of a head.
struct RopeSpec {
  std::size_t dim = 0;       ///< values that are rotated; frequencies per pair: dim / 2
  bool interleaved = false;  ///< pairs (2i, 2i + 1); else (i, i + dim / 2)
  std::vector<float> freqs;  ///< [dim / 2], YaRN applied
  float magnitude = 1.0F;    ///< factor of cos and sin
  bool is_learned = false;   ///< frequencies are multiplied by factors that the checkpoint has
  bool operator==(const RopeSpec&) const = default;
};

/// Queries of late tokens are larger, so that attention stays sharp over many keys: times
/// 1 + beta log(1 + floor((position + offset) / length)), or, where growth is smooth,
/// 1 + beta log(max((position + offset) / length, 1)), or, where it is a power,
/// (1 + (position + offset) / length)^beta.
struct GrowthSpec {
  float beta = 0, length = 1;
  std::uint32_t offset = 0;
  bool is_smooth = false, is_power = false;
  bool operator==(const GrowthSpec&) const = default;
};

/// Norms of queries and keys, with the model's epsilon: RMS norms but for the last.
enum class HeadNorm : std::uint8_t {
  kNone,
  kPerHead,   ///< norm of every head, with the weights of one head
  kAllHeads,  ///< norm of all heads at once
  kPlain,     ///< norm of every head, without weights
  /// Layer norm of every head, with the weights of one head, or with its own: a row of a matrix, or
  /// a tensor. With the bias that is there.
  kLayer,
};

/// Rows read some blocks of tokens, chosen by index heads; each serves as many heads.
struct BlockIndexSpec {
  std::size_t heads = 0, head_dim = 0;
  std::size_t size = 0;   ///< tokens of a block
  std::size_t topk = 0;   ///< blocks that a row reads
  std::size_t local = 0;  ///< the last of these blocks, which a row always reads; at most topk
  bool operator==(const BlockIndexSpec&) const = default;
};

/// Logits by distance in place of rope: each head of a row has `values`, which a table of the layer
/// [values, extent] makes into a logit for every distance below `extent`; beyond it is 0. They grow
/// with the queries.
struct DistanceSpec {
  std::size_t values = 0, extent = 0;
  bool operator==(const DistanceSpec&) const = default;
};

/// A norm of hidden states: weight x / root(mean x^2 + eps).
struct NormSpec {
  float eps = 1e-6F;
  float adds = 0;  ///< number that is added to the weights
  /// Layer norm, with the bias that is there; else an RMS norm.
  bool is_layer = false;
  bool is_plain = false;      ///< flag: it has no weights
  bool weighs_first = false;  ///< flag: the product with the weights is normed
  std::size_t gate_rank = 0;  ///< norms that have gates: y sigmoid(up silu(down y)), of this rank
  float gate_factor = 1.0F;   ///< number that gates are multiplied with
  bool operator==(const NormSpec&) const = default;
};

/// The lightning indexer of sparse attention.
struct IndexerSpec {
  std::size_t heads = 0, head_dim = 0, topk = 0;
  /// Tokens that share a key, of which a row sees all or none, but for those of the last,
  /// unfinished pool, which it always sees; topk counts tokens and is a multiple of it.
  std::size_t pool = 1;
  RopeSpec rope;
  /// Queries are made of the layer's input behind a layer norm, and their heads grow with the
  /// position, in place of the attention's query latent.
  bool from_input = false;
  /// Queries and keys are of one matrix, and each head has an RMS norm. The key of a pool is the
  /// mean of its tokens', normed and rotated as at the first of them, and all heads weigh the same.
  bool averages = false;
  /// Queries are made of the layer's input, and each head has an RMS norm. Each of `groups` runs of
  /// heads chooses for its key head, and a row always sees the pool that it is in, also where it is
  /// the last of it.
  bool by_group = false;
  std::size_t groups = 1;
  bool rotates_last = false;  ///< rope turns the last values of a head, not the first
  float norm_eps = 1e-6F;     ///< epsilon of the norm of keys
  /// Hadamard transform and FP8, as the reference code, in profile kNative.
  bool hadamard_fp8 = false;
  bool power_of_two_keys = false;  ///< scales of FP8 keys (scale_fmt ue8m0)
  bool operator==(const IndexerSpec&) const = default;
};

/// Grouped-query attention of a layer. Its projections have the biases that are there.
struct GroupedSpec {
  std::size_t heads = 0, kv_heads = 0, head_dim = 0;
  std::size_t value_dim = 0;  ///< values of a head; head_dim in most models
  float softmax_scale = 1.0F;
  std::optional<float> score_cap;  ///< scaled scores are cap tanh(score / cap)
  std::optional<float> clip;       ///< most that a value of a query, key or value has, and minus it
  HeadNorm norms = HeadNorm::kPerHead;
  bool norms_after_rope = false;
  bool biases = false;          ///< queries, keys and values must have theirs
  bool output_gate = false;     ///< q_proj gives a gate behind each head's query: times its sigmoid
  bool head_gate = false;       ///< gate as LatentSpec::head_gate
  bool value_gate = false;      ///< head_gate with a value of the product for each value of a head
  bool softplus_gate = false;   ///< softplus of the product, in place of sigmoid
  bool norms_attended = false;  ///< norm of each head's output before the gate, without weights
  bool sinks = false;           ///< a logit per head that takes its share of the softmax
  /// It turns the first values of queries and keys; without frequencies the layer has no positions.
  RopeSpec rope;
  std::optional<GrowthSpec> growth;
  /// Tokens that a row sees, its own too; 0: all. With `chunk` those of its own run of so many.
  std::size_t window = 0, chunk = 0;
  float value_scale = 1.0F;
  bool values_of_keys = false;  ///< values are the keys before their norm and rope
  bool norms_values = false;    ///< each value head, without weights
  /// Experts that make queries and outputs (ExpertProjections), heads / kv_heads of them for a
  /// token; 0: one projection each does.
  std::size_t experts = 0;
  std::optional<BlockIndexSpec> blocks;
  std::optional<IndexerSpec> indexer;  ///< one choice for all heads
  std::optional<DistanceSpec> distances;
  /// An earlier layer whose keys and values it reads; else it has its own.
  std::optional<std::size_t> keys_of;
  bool operator==(const GroupedSpec&) const = default;

  /// The first position that a row sees.
  [[nodiscard]] std::size_t first_seen(std::size_t position) const {
    if (chunk > 0) return position / chunk * chunk;
    return window > 0 && position >= window ? position + 1 - window : 0;
  }
};

/// Multi-head latent attention.
struct LatentSpec {
  std::size_t heads = 0, q_lora = 0, kv_lora = 0, nope = 0, rope_dim = 0, v = 0;
  RopeSpec rope;  ///< rotation of the last rope_dim values of a head; none without frequencies
  float softmax_scale = 1.0F;
  NormSpec latent_norm;  ///< form of q_a_layernorm and kv_a_layernorm
  bool head_gate = false;   ///< each head's output times sigmoid of one value of a product of x
  bool value_gate = false;  ///< head_gate with a value of the product for each value of a head
  /// q_b_proj takes the query latent before its norm too, and gives such a gate behind each query.
  bool gates_queries = false;
  bool norms_rope_key = false;       ///< norm of the key's rotated slice, before rope
  std::size_t window = 0;            ///< tokens that a row sees, its own too; 0: all
  bool sinks = false;                ///< sinks as in GroupedSpec
  std::optional<GrowthSpec> growth;  ///< growth of queries behind rope
  bool heads_grow = false;  ///< queries behind rope grow with the position, in heads' own ways
  /// An earlier layer whose latents and rope keys it reads; else it has its own.
  std::optional<std::size_t> keys_of;
  /// Factors of the normalized latents, in the weights of their norms.
  float query_latent_scale = 1.0F, key_latent_scale = 1.0F;
  std::optional<IndexerSpec> indexer;  ///< own indexer; nullopt: none
  bool takes_earlier_choice = false;   ///< the choice of the last layer with an indexer is taken
  bool operator==(const LatentSpec&) const = default;

  /// The first position that a row sees.
  [[nodiscard]] std::size_t first_seen(std::size_t position) const {
    return window > 0 && position >= window ? position + 1 - window : 0;
  }
};

}  // namespace ingot::inference
