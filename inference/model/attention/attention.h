#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/attention/head_growth.h"
#include "inference/model/spec/mixer_kind.h"
#include "inference/model/step/norm.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"
#include "inference/weights/linear.h"

// Parts that the kinds of attention share.

namespace ingot::inference {

/// The lightning indexer (model reference, 5): which past tokens a row attends to, one choice for
/// all heads. All ranks compute all of it.
class Indexer {
 public:
  Indexer(const BlockWeights& weights, const StepContext& context, const LatentSpec& latent);
  /// Makes an indexer that averages (IndexerSpec::averages).
  Indexer(const BlockWeights& weights, const StepContext& context, const IndexerSpec& spec);

  /// Writes the rows' index keys to the cache and fills `selection`, one entry per row, which is
  /// empty for rows that see no more than topk tokens. `x` is the attention's input,
  /// `latent_queries` the normalized query latent, which is not read where queries are made of x.
  /// Scores are sums over ascending heads; of equal scores the lower position is taken. Where
  /// tokens share a key (IndexerSpec::pool) it is their keys pooled by softmax over (gate x_t +
  /// ape[t % pool]) per value (transformers 5.23, glm5_next), or their mean (transformers 5.24,
  /// qwen4_exp).
  void select(const LayerStep& step, const Matrix& x, const Matrix& latent_queries) const;

 private:
  [[nodiscard]] Matrix project_queries(const StepContext& context, const StepRows& rows,
                                       const Matrix& x, const Matrix& latent_queries) const;
  void norm_heads(const StepContext& context, std::span<const float> norm, Matrix& heads) const;
  void prepare(const StepContext& context, std::span<const std::uint32_t> positions,
               Matrix& heads) const;
  void average_keys(const LayerStep& step, const Matrix& keys) const;
  void pool_keys(const LayerStep& step, const Matrix& x, const Matrix& keys) const;

  IndexerSpec spec_;
  RopeSpec rope_;
  Linear queries_, keys_, weights_, pool_logits_;
  std::vector<float> key_norm_, key_bias_, query_norm_;
  std::vector<float> input_norm_, input_bias_;  ///< norm of x, where queries are made of x
  HeadGrowth growth_;
  std::vector<float> place_logits_;  ///< [pool, head_dim]
};

/// Adds the streams of an indexer to those of its attention.
void add_index_streams(const IndexerSpec& indexer, const CacheForm& form,
                       std::vector<CacheStream>& streams);

/// Multi-head latent attention (model reference, 4), dense or over the tokens that the indexer
/// chose. Cached are the normalized latent and the rotated rope key, unless another layer's are
/// read; of a rank's heads the rows of q_b_proj (or q_proj) and kv_b_proj and the columns of
/// o_proj.
class MlaAttention final : public Mixer {
 public:
  using Spec = LatentSpec;
  MlaAttention(const BlockWeights& weights, const StepContext& context, const Spec& spec);

  [[nodiscard]] Matrix partial(const LayerStep& step, const Matrix& x) const override;
  static Spec read(const DecoderSpec& model, Parameters& parameters, std::uint32_t layer);
  static std::vector<CacheStream> streams(const Spec& spec, const CacheForm& form);
  static MixerMemory memory(const Spec& spec, std::size_t threads, std::uint64_t longest);

 private:
  struct Queries;
  Queries project_queries(const StepContext& context, const Matrix& x,
                          const RopeAngles& angles) const;
  void split_gates(const Matrix& both, Queries& queries) const;
  void cache_rows(const LayerStep& step, const Matrix& x, const RopeAngles& angles) const;
  void naive(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
             Matrix& out) const;
  void absorbed(const LayerStep& step, const Matrix& queries, const SequenceRun& run,
                Matrix& out) const;

  Spec spec_;
  RopeSpec rope_;          ///< rotation of queries and keys; none where it has no frequencies
  std::size_t heads_ = 0;  ///< heads of this rank
  HeadGrowth growth_;
  Linear q_, q_a_, q_b_, kv_a_, kv_b_, o_, gate_;
  HiddenNorm q_norm_, kv_norm_;
  std::vector<float> rope_key_norm_, sinks_;
  std::optional<Indexer> indexer_;
};

/// Multiplies heads of `width` values, which attention gave, by the sigmoid (or softplus) of one
/// value each of gate x. `bias` has a number per head, or none, for each of its values there.
void gate_heads(const StepContext& context, const Linear& gate, const Matrix& x, std::size_t width,
                Matrix& attended, bool is_softplus = false, std::span<const float> bias = {});

/// Logits by distance of one head's rows, [rows, extent]: each row's values times the table.
Matrix logits_by_distance(Profile profile, std::span<const float> table, const DistanceSpec& spec,
                          formats::MatrixView<const float> rows);

/// Copies some rows of a matrix.
Matrix gathered(formats::MatrixView<const float> from, std::span<const std::uint32_t> which);

/// Returns the scores of the first `n` keys for one row: sum over ascending heads of weight x
/// relu(head . key).
std::vector<float> index_scores(formats::MatrixView<const float> heads,
                                std::span<const float> weights, const Matrix& keys, std::size_t n);

/// The `topk` largest, ascending; of equal ones the lower position. There are at least so many.
std::vector<std::uint32_t> best_positions(std::span<const float> scores, std::size_t topk);

/// y_b = n^-1/2 * sum over a of (-1)^popcount(a & b) * x_a, in place; n = x.size() is a power of
/// two. In FP32, by halves: strides 1, 2, 4, ... Its own inverse.
void hadamard(std::span<float> x);

/// Numbers that all heads of a layer share.
struct AttentionNumbers {
  Profile profile = Profile::kF32;
  float scale = 1.0F;
  std::size_t threads = 1;
  std::optional<float> cap = {};  ///< scaled scores are cap tanh(score / cap)
  /// One per query, or none: a logit more in its softmax, which takes its share and gives nothing.
  std::span<const float> sinks = {};
  /// The first key that a query sees; empty: 0.
  std::function<std::size_t(std::size_t)> from = {};
  /// One row per query, or none: value d is added to the scaled score of the key that stands d
  /// before the last one that the query sees, and nothing to those further away.
  formats::MatrixView<const float> by_distance = {};
};

/// A share of the scores: queries [Q, d] against keys [T, d].
struct ScorePart {
  formats::MatrixView<const float> queries, keys;
};

/// out[i] = sum over from(i) <= t < visible(i) of softmax_t(scale * sum over parts (q_i . k_t)) *
/// values[t]. `parts` holds one or two. Scores take O(T) memory whatever Q: queries go in blocks. A
/// query's result depends only on itself and the keys that it sees: scores are dot(), the softmax
/// runs over t ascending, and values are added in ascending t. Unless the profile is kF32, scores,
/// scaled scores, probabilities and results are rounded to BF16. `visible` is 1 to T and may be
/// asked for any query.
void attend(const AttentionNumbers& numbers, std::span<const ScorePart> parts,
            formats::MatrixView<const float> values,
            const std::function<std::size_t(std::size_t)>& visible, formats::MatrixView<float> out);

}  // namespace ingot::inference
