#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "inference/model/feed_forward/mixture.h"
#include "inference/model/recurrent/ngram_lookup.h"
#include "inference/model/step/gated_streams.h"
#include "inference/model/step/hyper_connection.h"
#include "inference/model/step/layer_inputs.h"
#include "inference/model/step/loop_messages.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/predicted_streams.h"
#include "inference/model/step/residual_sum.h"
#include "inference/model/step/short_convolution.h"
#include "inference/model/step/source_mix.h"
#include "inference/model/step/step.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// A layer: its residual blocks one after the other, each x + body(norm(x)), or the same with
/// hyper-connections in place of the sum (LayerSpec).
class DecoderLayer {
 public:
  /// Reads layer `layer` of the checkpoint, whose tokens are in layer `cache_layer` of its cache.
  DecoderLayer(const WeightStore& weights, const StepContext& context, std::uint32_t layer,
               std::size_t cache_layer, ExpertStore* experts);

  /// hidden <- this layer of hidden. The cache has room for the rows. `keys` holds only the keys of
  /// the layer whose keys this one reads; null: they are in the cache. `again` is null on the first
  /// visit.
  void forward(const StepContext& context, Matrix& hidden, const StepRows& rows, KvCache& cache,
               Selection& selection, const Taps& taps, KvCache* keys = nullptr,
               const LoopVisit* again = nullptr) const;

 private:
  using Body = std::variant<Mlp, Mixture, std::unique_ptr<Mixer>>;
  struct Block {
    Body body;
    HiddenNorm norm;  ///< norm of the block's input; empty where it takes another block's input
    HiddenNorm output_norm;  ///< empty: none
    std::optional<std::uint8_t> input_of;
    std::size_t first_stream = 0;  ///< number of the block's first stream in the cache layer
    HyperWeights streams;
    GatedStreams gated_streams;  ///< connections of low rank, in place of `streams`
    ShortConvolution convolution;
    ResidualSum sum;
    SourceMix sources;  ///< makes the input; empty: it is the stream
    Linear residual_down, residual_up;  ///< matrices of BlockSpec::residual_rank; may be empty
    HiddenNorm residual_norm;
  };
  static Body load(const BlockWeights& weights, const StepContext& context, const BodySpec& spec,
                   ExpertStore* experts);
  void add_ngrams(LayerStep& step, Matrix& hidden) const;
  void split_states(LayerStep& step) const;
  void add_source(const LayerStep& step, std::size_t block, const Matrix& hidden) const;
  /// Puts what the layer made of the active stream into `streams`, where it predicts some, and adds
  /// the layer's input.
  void finish_streams(const StepContext& context, const Matrix& carried, Matrix streams,
                      Matrix& hidden) const;
  static Matrix run(const Block& block, const LayerStep& step, const Matrix& x);

  std::uint32_t layer_;
  std::size_t cache_layer_;
  std::optional<NgramLookup> ngrams_;
  std::vector<Block> blocks_;
  std::optional<LoopMessages> messages_;
  std::optional<PredictedStreams> predicted_;
  std::optional<LayerInputGate> input_gate_;
  float scale_ = 1.0F;  ///< factor of the layer's output
};

/// The layer for multi-token prediction: a decoder layer over the embedding of the next token and
/// the hidden state, each normed, joined and projected (model reference, 7.1).
class MtpLayer {
 public:
  /// True if the source has an MTP layer. A promised layer without any tensor was left out on
  /// purpose; a layer with some tensors must be whole.
  static bool is_in(const WeightStore& weights, const ModelSpec& spec);

  /// Reads the MTP layer, whose tokens are in layer 0 of its cache.
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
