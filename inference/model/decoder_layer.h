#pragma once

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "inference/model/attention/attention.h"
#include "inference/model/attention/compressed_attention.h"
#include "inference/model/feed_forward/mixture.h"
#include "inference/model/recurrent/delta_net.h"
#include "inference/model/recurrent/state_space.h"
#include "inference/model/step/hyper_connection.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/step.h"
#include "inference/model/twofold_layer.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// One pre-norm block: a = x + Mixer(norm(x)), y = a + Ffn(norm(a)), or the same with
/// hyper-connections in place of the sums. The kind of mixer and whether the feed-forward part is
/// dense or a mixture are the spec's.
class DecoderLayer {
 public:
  /// Layer `layer` of the checkpoint, kept as layer `cache_layer` of its cache.
  DecoderLayer(const WeightStore& weights, const StepContext& context, std::uint32_t layer,
               std::size_t cache_layer, ExpertStore* experts);

  /// hidden <- this layer of hidden. The cache has room for the rows. `keys` holds those of the
  /// layer whose keys this one reads, and nothing else; null: they are in the cache.
  void forward(const StepContext& context, Matrix& hidden, const StepRows& rows, KvCache& cache,
               Selection& selection, const Taps& taps, KvCache* keys = nullptr) const;

 private:
  static HyperWeights hyper_weights(const WeightStore& weights, const StepContext& context,
                                    const std::string& prefix);
  void load_mixer(const WeightStore& weights, const StepContext& context);

  std::uint32_t layer_;
  std::size_t cache_layer_;
  std::vector<float> input_norm_, post_norm_;
  std::vector<float> mixture_norm_;  ///< of what the mixture gives; empty: none
  std::variant<std::monostate, MlaAttention, GqaAttention, CompressedAttention, DeltaNet,
               StateSpace>
      mixer_;
  HyperWeights mixer_streams_, ffn_streams_;
  ShortConvolution mixer_convolution_, ffn_convolution_;
  std::optional<Mlp> dense_;
  float dense_scale_ = 1.0F;  ///< of its output
  std::optional<Mixture> mixture_;
  std::optional<TwofoldLayer> twofold_;  ///< in place of all that
};

/// The layer for multi-token prediction: a decoder layer over the embedding of the next token and
/// the hidden state, each normed, joined and projected (model reference, 7.1).
class MtpLayer {
 public:
  /// Whether the source has one. A promised layer of which no tensor is there was left out on
  /// purpose; one of which some are there must be whole.
  static bool is_in(const WeightStore& weights, const ModelSpec& spec);

  /// Kept as layer 0 of its cache.
  MtpLayer(const WeightStore& weights, const StepContext& context, ExpertStore* experts);

  /// `embedded` is the embedding of the next tokens, `normed` what the final norm returned. Returns
  /// the layer's output after its own norm. The cache has room for the rows.
  [[nodiscard]] Matrix forward(const StepContext& context, const Matrix& embedded,
                               const Matrix& normed, const StepRows& rows, KvCache& cache,
                               Selection& selection, const Taps& taps) const;

 private:
  std::vector<float> embedding_norm_, hidden_norm_, head_norm_;
  Linear project_;
  DecoderLayer layer_;
};

}  // namespace ingot::inference
