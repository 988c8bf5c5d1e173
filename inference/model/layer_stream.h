#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/model_ends.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/linear.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

struct LayerStreamOptions {
  Profile profile = Profile::kNative;
  AttentionForm form = AttentionForm::kNaive;
  std::size_t threads = 1;
  /// Bytes for weights; the rest that a layer's other weights leave holds its experts. 0: no limit.
  std::uint64_t weight_limit = 0;
  /// Shown the input of every linear; may be null, must outlive the stream.
  InputObserver* observer = nullptr;
  /// Place of the rank whose directory the source is, and its meetings with the others (else null).
  RankView rank = {};
  Comm* comm = nullptr;
};

/// A model of which one layer at a time is in memory: whole sequences pass through a layer, then
/// the next one is read. One pass over the weights, experts once for all tokens, however small the
/// memory; what Model computes of the same rows, bit for bit in profile kF32. Over ranks the first
/// one's stream is used like any other, and tells the others, which follow(), what to compute.
class LayerStream {
 public:
  /// `source` must outlive this. Reads no weights. All ranks come. Throws kUnsupported for an
  /// architecture that has no forward pass.
  LayerStream(const formats::Checkpoint& source, const LayerStreamOptions& options);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] bool has_mtp() const { return has_mtp_; }

  /// `rows` are whole sequences from position 0, numbered from 0 without gaps.
  [[nodiscard]] Matrix embed(std::span<const Row> rows);
  /// hidden <- layer l (a main layer) of hidden; row i of hidden belongs to rows[i]. Layers that
  /// share an earlier one's choice of an indexer, or its keys, see those of the calls before, so
  /// call them in order.
  void layer(std::size_t l, Matrix& hidden, std::span<const Row> rows, const Taps& taps = {});
  [[nodiscard]] Matrix final_norm(const Matrix& hidden);
  /// Logits of rows that final_norm or mtp returned. The head stays in memory until something else
  /// is read.
  [[nodiscard]] Matrix head(const Matrix& normed);
  /// Computes Model::mtp for whole sequences: entry i pairs h_i with the next token,
  /// `rows[i].token`.
  [[nodiscard]] Matrix mtp(const Matrix& normed, std::span<const Row> rows, const Taps& taps = {});

  /// A layer in memory, for rows in several batches of whole sequences, each numbered from 0: what
  /// layer() and mtp() compute of all rows at once, with the layer read once. What later layers
  /// need of a batch is kept by its number, so number batches alike in every layer. Only one is in
  /// memory at a time; none over ranks.
  class LoadedLayer {
   public:
    void run(std::size_t batch, Matrix& hidden, std::span<const Row> rows, const Taps& taps);
    /// `embedded`: what embed() makes of the rows.
    [[nodiscard]] Matrix mtp(std::size_t batch, const Matrix& embedded, const Matrix& normed,
                             std::span<const Row> rows, const Taps& taps);

   private:
    friend class LayerStream;
    LoadedLayer(LayerStream& stream, std::size_t l);
    void visit_again(Matrix& hidden, const StepRows& grouped, Selection& selection,
                     const Taps& taps);

    LayerStream& stream_;
    std::size_t l_;
    std::unique_ptr<ExpertStore> experts_;
    std::optional<DecoderLayer> layer_;
    std::optional<MtpLayer> mtp_;
  };
  /// Reads a main layer, or the MTP layer (l == spec().n_main); call them in order.
  [[nodiscard]] LoadedLayer load(std::size_t l);

  /// Runs the same calls as the first rank's stream until it is released.
  void follow();
  void release_followers();

  /// Bytes of weights read from the source so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return weights_.bytes_read(); }

 private:
  [[nodiscard]] std::unique_ptr<ExpertStore> experts_of(std::uint32_t l) const;
  [[nodiscard]] KvCache cache_of(std::size_t l, const StepRows& rows) const;
  OutputHead& output_head();
  [[nodiscard]] Matrix embedded(std::span<const Row> rows);
  /// out <- what `compute` makes of it in the stage that holds layer l, and what the taps are shown
  /// there, on all ranks.
  void in_stage(std::size_t stage, std::size_t l, Matrix& out, const Taps& taps,
                const std::function<void(const Taps& taps)>& compute);

  ModelSpec spec_;
  OneRank alone_;
  StepContext context_;
  std::uint64_t weight_limit_;
  WeightStore weights_;
  /// Choices and keys that later layers take from earlier ones, of one batch of rows.
  struct Earlier {
    Selection selection;
    std::map<std::size_t, KvCache> keys;  // keys of earlier layers that later ones still read
  };
  std::map<std::size_t, Earlier> earlier_;  // by batch
  bool has_mtp_ = false;
  std::optional<OutputHead> head_;  // while nothing else is read
};

}  // namespace ingot::inference
