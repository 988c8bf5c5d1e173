#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/spec/layer_cache.h"
#include "inference/model/spec/layer_spec.h"
#include "inference/parallel/comm.h"
#include "inference/parallel/rank_view.h"
#include "inference/weights/linear.h"

namespace ingot::inference {

/// Counts of choices near a tie: the best value that was left out was within kNearTie, relative, of
/// the last that was chosen. There sums that are added in another order may choose otherwise.
inline constexpr float kNearTie = 1e-5F;
struct NearTies {
  std::uint64_t router = 0;   ///< tokens, over all layers
  std::uint64_t indexer = 0;  ///< tokens, over all layers
  std::uint64_t argmax = 0;   ///< greedy tokens
  bool operator==(const NearTies&) const = default;
};
bool is_near_tie(float chosen, float left_out);
/// True if the choice of the n values at `chosen` (ascending) among all is near a tie; values of
/// -infinity are no choice.
bool is_near_tie(std::span<const float> values, std::span<const std::uint32_t> chosen);

/// Facts that an onlooker is shown while a step runs. Layers are numbered as in the checkpoint, MTP
/// layers after the main ones.
struct Taps {
  /// The residual stream, one row per row of the step: 0 is the embedding, l + 1 the output of
  /// layer l. MTP layers show only their output.
  std::function<void(std::size_t index, const Matrix& hidden)> hidden;
  /// Chosen experts [rows x k] of a MoE layer, ascending per row, and their weights; those without
  /// tensors are behind the others.
  std::function<void(std::size_t layer, std::span<const std::uint32_t> experts,
                     std::span<const float> weights)>
      router;
  /// Positions that a row attends to, ascending; only where the indexer had to choose.
  std::function<void(std::size_t layer, std::size_t row, std::span<const std::uint32_t> positions)>
      indexer;
  /// Input of the routed experts of a layer, one row per row of the step.
  std::function<void(std::size_t layer, const Matrix& x)> mixture = {};
  /// Outputs of a routed expert, one row per token that chose it, and the weight that each is
  /// multiplied with. Not shown where tokens travel to other ranks.
  std::function<void(std::size_t layer, std::uint32_t expert, std::span<const float> weights,
                     const Matrix& outputs)>
      expert = {};
  /// Vectors that a block caches, one row per row of the step; `first_stream` tells the blocks of a
  /// layer apart, `stream` is the number within the block (layer_cache.h).
  std::function<void(std::size_t layer, std::size_t first_stream, std::size_t stream,
                     MatrixView<const float> values)>
      cache = {};
  /// Counts choices of router and indexer, where it is not null.
  NearTies* near_ties = nullptr;
  /// Counts tokens given to the experts of this rank, over all layers, where it is not null.
  std::uint64_t* expert_tokens = nullptr;
};

/// One token of a step. Rows of one sequence are next to each other, in ascending position without
/// gaps, and follow on what the cache holds of it.
struct Row {
  SequenceId sequence = 0;
  std::uint32_t position = 0;
  std::int32_t token = 0;
  bool logits = false;  ///< true: the step returns logits of this row
  /// The token is in an answer, not in a prompt: latent attention is absorbed. The form follows
  /// only from the token's place, so that a row's bits do not depend on what else is in its step.
  bool is_answer = false;
};

/// How latent attention is computed (model reference, 4.2 and 4.3). Grouped-query attention knows
/// one form.
enum class AttentionForm : std::uint8_t {
  kAuto,      ///< naive in prompts, absorbed in answers (Row::is_answer)
  kNaive,     ///< keys and values of every token expanded from the latent
  kAbsorbed,  ///< queries taken into the latent space
};

/// Rows of one sequence, all of its prompt or all of its answer.
struct SequenceRun {
  SequenceId sequence = 0;
  bool is_answer = false;
  std::size_t first_row = 0, count = 0;
  std::uint32_t first_position = 0;
  /// Tokens that the last row sees.
  [[nodiscard]] std::size_t total() const { return first_position + count; }
};

/// The rows of a step, grouped. Where the answer of a sequence begins, so does another run.
struct StepRows {
  std::vector<SequenceRun> runs;
  std::vector<std::uint32_t> positions;  ///< per row
  std::vector<std::int32_t> tokens;      ///< per row

  /// Throws kInvalidArgument for a sequence that is in two places, or whose positions have gaps.
  explicit StepRows(std::span<const Row> rows);
};

/// Facts that every part of a layer is given.
struct StepContext {
  const ModelSpec& spec;
  Profile profile = Profile::kF32;
  AttentionForm form = AttentionForm::kAuto;
  std::size_t threads = 1;
  RankView rank;
  Comm& comm;
};

/// The positions that rows attend to where the indexer chose, empty where a row sees everything.
/// Kept between the layers of a step: some share the choice of an earlier one.
using Selection = std::vector<std::vector<std::uint32_t>>;

/// Facts that the parts of one layer are given. The cache has room for the rows.
struct LayerStep {
  const StepContext& context;
  const StepRows& rows;
  std::size_t layer = 0, cache_layer = 0;  ///< number in the checkpoint, and in the cache
  KvCache& cache;
  /// Cache of the latents and rope keys that the layer reads: its own, or another layer's.
  KvCache& key_cache;
  std::size_t key_layer = 0;
  Selection& selection;
  const Taps& taps;
  std::size_t first_stream = 0;  ///< first stream of the block in the cache layer
  /// Rows that the layer's short convolutions keep of each run's sequence; empty without any.
  std::vector<std::span<float>> recent = {};
  /// The mixer's share of the layer's state, for each run; empty: all of it.
  std::vector<std::span<float>> mixer_states = {};
  /// Values that the layer's router takes from that of the layer before, and replaces.
  Matrix* carried = nullptr;

  /// The mixer's state of a run of `rows`, as they find it; they must move it on.
  [[nodiscard]] std::span<float> state(const SequenceRun& run) const;
  /// Shows the onlooker the rows' choices.
  void show(const Selection& chosen) const;
  /// Caches one vector of every row.
  void write(std::size_t stream, MatrixView<const float> values) const;
  /// Reads one stream of the tokens at `positions`, [positions, width]; unless the profile is kF32
  /// the values of codes are rounded to BF16.
  [[nodiscard]] Matrix cached(Profile profile, SequenceId sequence, std::size_t stream,
                              std::span<const std::uint32_t> positions) const;
  /// Reads one stream of latents or rope keys as cached() does, from whichever layer has them.
  [[nodiscard]] Matrix cached_keys(Profile profile, SequenceId sequence, std::size_t stream,
                                   std::span<const std::uint32_t> positions) const;
};

/// Positions 0 to n - 1.
std::vector<std::uint32_t> first_positions(std::size_t n);

/// x W^T as FP32 sums.
Matrix product(const StepContext& context, const Linear& linear, const Matrix& x);
/// x W^T with `bias` (empty: none) added to every row, rounded as the profile rounds between
/// operations.
Matrix rounded_product(const StepContext& context, const Linear& linear, const Matrix& x,
                       std::span<const float> bias = {});
/// Adds `bias` (empty: none) to every row.
void add_bias(std::span<const float> bias, Matrix& y);
/// Rows times GrowthSpec's factors of their positions, rounded; unchanged without a spec.
void grow_queries(Profile profile, const std::optional<GrowthSpec>& growth,
                  std::span<const std::uint32_t> positions, Matrix& queries);

/// Throws kUnsupported, naming both, for a layer of `stage` that reads the keys of a layer before
/// it, and for stages of a model with sources, or whose layers share experts.
void require_keys_in_stage(const ModelSpec& spec, const Range& stage);

/// Returns on all ranks what `compute` gives on the ranks of a pipeline's last stage, [rows, cols].
Matrix of_last_stage(const StepContext& context, std::string_view name, std::size_t rows,
                     std::size_t cols, const std::function<Matrix()>& compute);
/// True on all ranks if the last stage has something that only its ranks can see.
bool is_in_last_stage(const StepContext& context, bool is_here);

/// Adds up what the ranks of the tensor group have, and rounds the sum.
void reduce(const LayerStep& step, std::string_view name, Matrix& sums);
/// values <- factor x values, rounded; unchanged where the factor is 1.
void scale_rounded(Profile profile, float factor, Matrix& values);
/// to += what (which may be empty), rounded.
void add_rounded(Profile profile, Matrix& to, const Matrix& what);

/// The first columns of a matrix, with zeros behind them where it has fewer.
Matrix of_width(Matrix values, std::size_t width);
/// Shows an onlooker the streams between two layers (Taps::hidden).
void show_hidden(const ModelSpec& spec, const Taps& taps, std::size_t index, const Matrix& hidden);

/// Throws kNonFinite naming layer, operation and row where a value is NaN or infinite.
void require_finite(const Matrix& values, std::size_t layer, std::string_view operation);

/// Keys and values of the sequences in flight: of the main layers, and of the MTP layers, whose
/// sequences have lengths of their own. A SequenceId means the same in both.
class ModelCache {
 public:
  ModelCache(KvCache main, KvCache mtp) : main_(std::move(main)), mtp_(std::move(mtp)) {}

  SequenceId add();
  void free(SequenceId sequence);
  [[nodiscard]] KvCache& main() { return main_; }
  [[nodiscard]] KvCache& mtp() { return mtp_; }
  [[nodiscard]] Selection& selection() { return selection_; }

 private:
  KvCache main_, mtp_;
  Selection selection_;
};

}  // namespace ingot::inference
