#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/decoder_layer.h"
#include "inference/model/model_ends.h"
#include "inference/model/step/step.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/weights/expert_store.h"
#include "inference/weights/weight_store.h"

namespace ingot::inference {

struct ModelOptions {
  Profile profile = Profile::kNative;
  AttentionForm form = AttentionForm::kAuto;
  std::size_t threads = 1;
  /// Most bytes for weights; experts get what other weights leave of it. 0: no limit.
  std::uint64_t weight_limit = 0;
  /// Leave the layers for multi-token prediction out.
  bool without_mtp = false;
};

/// A model over the very bytes of a checkpoint, or what a rank holds of it. Holds no sampling state
/// and no position: what a row sees is its sequence's cache.
///
/// All ranks open their models and call step(), head() and mtp() together, with the same rows
/// within a tensor group and in all stages of a pipeline; a group may have none. Every stage gets
/// what they return.
class Model {
 public:
  /// Reads every weight but the experts (those too when they fit). `source` is the whole model, of
  /// which a rank's share is read, or the directory of only that rank (`rank_view`). `source` and
  /// `comm` must outlive the model. Throws kUnsupported for an architecture that has no forward
  /// pass, kMissingTensor and kShapeMismatch naming the tensor, kLimit when `weight_limit` is too
  /// small, saying what would be enough.
  Model(const formats::Checkpoint& source, const RankView& rank, Comm& comm,
        const ModelOptions& options);

  [[nodiscard]] const ModelSpec& spec() const { return spec_; }
  [[nodiscard]] const RankView& rank() const { return context_.rank; }
  [[nodiscard]] Comm& comm() const { return context_.comm; }
  /// True if the model has an MTP layer, on this rank or on the last stage.
  [[nodiscard]] bool has_mtp() const { return has_mtp_; }
  /// Makes a cache for `capacity` tokens over all sequences, counted in whole pages per sequence.
  /// `scales`: by layer, for kFp8Static.
  [[nodiscard]] ModelCache make_cache(KvFormat format, std::size_t capacity,
                                      std::span<const StaticScales> scales = {}) const;

  /// Runs embed, every layer and head; returns the logits [wanted rows, vocab] of this step. `rows`
  /// may be empty. The cache holds the new tokens afterwards. Throws kInvalidArgument for ids out
  /// of range and positions that do not follow; kNonFinite naming layer and operation.
  Matrix step(std::span<const Row> rows, ModelCache& cache, const Taps& taps = {},
              Matrix* normed_hidden = nullptr) const;

  [[nodiscard]] Matrix embed(std::span<const Row> rows) const;
  /// hidden <- layer l of hidden, a main layer of this rank's stage. `cache` has room for the rows.
  void layer(std::size_t l, Matrix& hidden, std::span<const Row> rows, ModelCache& cache,
             const Taps& taps = {}) const;
  /// Computes the final norm, only on the last stage.
  [[nodiscard]] Matrix final_norm(const Matrix& hidden) const;
  /// Logits of rows that final_norm returned.
  [[nodiscard]] Matrix head(const Matrix& normed) const;
  /// The MTP layer: entry i pairs the hidden state h_i after the final norm (`normed`) with the
  /// next token t_{i+1} (`rows[i].token`) at position i (`rows[i].position`). Returns the layer's
  /// output after its own norm, from which head_mtp gives the logits of t_{i+2}.
  [[nodiscard]] Matrix mtp(const Matrix& normed, std::span<const Row> rows, ModelCache& cache,
                           const Taps& taps = {}) const;
  [[nodiscard]] ExpertCounters expert_counters() const {
    return experts_ ? experts_->counters() : ExpertCounters{};
  }
  /// True if all experts are in memory; false if they are read on demand.
  [[nodiscard]] bool all_experts_resident() const { return !experts_ || experts_->all_resident(); }
  /// Bytes of weights read from the source so far.
  [[nodiscard]] std::uint64_t bytes_read() const { return weights_.bytes_read(); }

 private:
  [[nodiscard]] std::vector<std::vector<CacheStream>> streams(
      KvFormat format, Range layers, std::span<const StaticScales> scales) const;
  [[nodiscard]] Range mtp_layers() const;
  /// Hands hidden states and the choice of the last indexer from stage `from` to the next one.
  void hand_on(std::size_t from, Matrix& hidden, Selection& selection) const;

  ModelSpec spec_;
  StepContext context_;
  Range stage_;  // main layers
  WeightStore weights_;
  std::unique_ptr<ExpertStore> experts_;  // null without any
  std::optional<TokenEmbedding> embedding_;
  std::optional<OutputHead> head_;
  std::vector<DecoderLayer> layers_;  // layers of the stage
  std::optional<MtpLayer> mtp_;       // on the last stage
  bool has_mtp_ = false;
};

}  // namespace ingot::inference
