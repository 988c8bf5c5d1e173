#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/step/model_spec.h"
#include "inference/parallel/comm.h"

namespace ingot::inference {

/// One token of a step. Rows of one sequence stand together, in ascending position without gaps,
/// and follow on what the cache holds of it.
struct Row {
  SequenceId sequence = 0;
  std::uint32_t position = 0;
  std::int32_t token = 0;
  bool logits = false;  ///< wanted for this row
};

/// How latent attention is computed (model reference, 4.2 and 4.3). Grouped-query attention knows
/// one form.
enum class AttentionForm : std::uint8_t {
  kAuto,      ///< absorbed for a sequence's single new row, naive for several
  kNaive,     ///< keys and values of every token expanded from the latent
  kAbsorbed,  ///< queries taken into the latent space
};

/// Rows of one sequence.
struct SequenceRun {
  SequenceId sequence = 0;
  std::size_t first_row = 0, count = 0;
  std::uint32_t first_position = 0;
  /// Tokens that the last row sees.
  [[nodiscard]] std::size_t total() const { return first_position + count; }
};

/// The rows of a step, grouped.
struct StepRows {
  std::vector<SequenceRun> runs;
  std::vector<std::uint32_t> positions;  ///< per row

  /// kInvalidArgument for a sequence that stands in two places, or whose positions have gaps.
  explicit StepRows(std::span<const Row> rows);
};

/// What every part of a layer is told.
struct StepContext {
  const ModelSpec& spec;
  Profile profile = Profile::kF32;
  AttentionForm form = AttentionForm::kAuto;
  std::size_t threads = 1;
  RankView rank;
  Comm& comm;
};

/// Throws kNonFinite naming layer, operation and row where a value is NaN or infinite.
void require_finite(const Matrix& values, std::size_t layer, std::string_view operation);

}  // namespace ingot::inference
