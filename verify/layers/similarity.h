#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/model/step/step.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

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
