#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "formats/container/tensor.h"
#include "inference/base/profile.h"
#include "inference/model/step/step.h"
#include "verify/layers/clipped_cache.h"
#include "verify/outputs/divergence.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

/// How alike the hidden states of tokens are: cosines in double between rows [D].
struct Similarity {
  double mean = 1, median = 1, worst = 1;
  double mean_without_first = 1;  ///< mean without token 0 of each prompt, whose norm is often huge
  double worst_without_first = 1;
  std::size_t worst_prompt = 0, worst_token = 0;
  double relative_error = 0;  ///< Frobenius over all tokens
  double max_error = 0;
  friend bool operator==(const Similarity&, const Similarity&) = default;
};

/// One layer on all prompts.
struct LayerAgreement {
  std::size_t layer = 0;
  bool is_mtp = false;
  Similarity isolated;     ///< both were given the source's hidden state
  Similarity accumulated;  ///< each side was given its own hidden state
  /// Mean over tokens of the part of the source's chosen experts (isolated) that the output chose
  /// too; nullopt for layers without experts. Likewise positions of the indexer, over the rows
  /// where both chose.
  std::optional<double> router_overlap, indexer_overlap;
  /// An FP8 cache of the output's own hidden states (accumulated) under its stored scales; empty
  /// without any.
  std::vector<ClippedCache> cache = {};
  friend bool operator==(const LayerAgreement&, const LayerAgreement&) = default;
};

/// "layer 3", "MTP layer 61".
std::string layer_title(const LayerAgreement& layer);

/// Level `layers`.
struct LayersReport {
  std::string source_profile, output_profile;
  std::size_t prompts = 0, tokens = 0;
  std::vector<LayerAgreement> layers;  ///< main layers, then the MTP layer when both have it
  LogitAgreement logits;
  std::optional<LogitAgreement> mtp_logits;
  std::vector<TokenDivergence> tokens_of_logits, tokens_of_mtp;  ///< sums of each token
  friend bool operator==(const LayersReport&, const LayersReport&) = default;
};

/// Runs both models over the prompts layer by layer. A layer's weights are in memory while it runs,
/// its experts are read once for all tokens of all prompts and both modes, so memory stays within
/// `mem_limit` for models that do not: throws kLimit and names the memory that would suffice when
/// one layer, two experts and the hidden states do not fit. kMismatch when the models have other
/// shapes.
LayersReport compare_layers(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            std::span<const Prompt> prompts, const RunOptions& options);

/// Runs on the other ranks while the first one is in compare_layers(): they compute the layers of
/// the output with it, each from its own directory. Only profile, threads, memory and ranks of the
/// options have an effect.
void follow_layers(const formats::Checkpoint& rank, const RunOptions& options);

/// Compares the rows of `spans`: both matrices are [rows, D]. Cosines and sums in double over
/// ascending columns and rows, whatever the number of threads; a token of which both rows are zero
/// has cosine 1, of which one is, 0; the median of an even number is the mean of the middle two.
/// Where every prompt has one token, "without the first" is what "with" is. kNonFinite naming
/// prompt and token.
Similarity similarity(formats::MatrixView<const float> source,
                      formats::MatrixView<const float> output, std::span<const PromptSpan> spans,
                      std::size_t threads);

/// The choices of router and indexer of one layer for the first `rows` of `all_rows` rows of a
/// pass.
class LayerChoices {
 public:
  LayerChoices(std::size_t rows, std::size_t all_rows)
      : rows_(rows), all_rows_(all_rows), positions_(rows) {}
  LayerChoices(const LayerChoices&) = delete;
  LayerChoices& operator=(const LayerChoices&) = delete;

  /// Records one layer. This object must outlive them.
  [[nodiscard]] inference::Taps taps();

  /// Gives the experts the numbers that they have in another model.
  void renumber(std::span<const std::uint32_t> numbers);
  /// Mean over rows of the part of this side's experts that the other chose too; nullopt for a
  /// layer without experts.
  [[nodiscard]] std::optional<double> router_overlap(const LayerChoices& other) const;
  /// Mean of the part of this side's positions that the other chose too, over rows for which both
  /// had to choose; nullopt without such rows.
  [[nodiscard]] std::optional<double> indexer_overlap(const LayerChoices& other) const;

 private:
  std::size_t rows_, all_rows_;
  std::vector<std::uint32_t> experts_;                 // [rows x k], ascending per row
  std::vector<std::vector<std::uint32_t>> positions_;  // empty: everything is seen
};

}  // namespace ingot::verify
