#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/generate/sampling.h"
#include "inference/model/model.h"

namespace ingot::inference {

/// The rows of one sequence in a step of the main model.
struct AcceptedRows {
  SequenceId sequence = 0;
  std::size_t first_row = 0, count = 0;  ///< rows of the step whose tokens hold
  std::uint32_t first_position = 0;      ///< position of the first of these rows
  /// The tokens after those rows, `count` of them: of the prompt, or chosen from the step's logits.
  std::vector<std::int32_t> next;
  std::size_t prompt_tokens = 0;
  std::uint64_t prompt_hash = 0;
  std::size_t most_drafts = 0;  ///< 0: more of the prompt is to come, or the answer is at its end
};

/// The MTP layer at work: proposes the tokens that the next step checks. Its cache follows the main
/// one: entry i is made of the state of row i and of token i + 1.
///
/// The noise of a sample belongs to prompt, position and token (SampleKey), and proposals are drawn
/// with the noise of their position. So a proposal holds where the main model draws the same token,
/// and an answer is token for token the one without drafts, sampled or not. This is a coupling of
/// both distributions: the main model's is kept exactly.
class Drafter {
 public:
  /// Proposes at most `k` tokens a sequence; beyond the first the layer is applied to its own
  /// output. Throws kUnsupported for a model without an MTP layer. Model and options must outlive
  /// this.
  Drafter(const Model& model, std::size_t k, const SamplingOptions& sampling);

  /// Takes the states of all rows of a step (`normed`, as Model::step() gives them), and returns
  /// the tokens proposed for each of `accepted`, of its `most_drafts` at most. All ranks call it
  /// after every step, also without sequences. Rows that were cached at or after a sequence's first
  /// position are replaced; rows that are cached only for proposals are taken back.
  std::vector<std::vector<std::int32_t>> propose(const Matrix& normed,
                                                 std::span<const AcceptedRows> accepted,
                                                 ModelCache& cache) const;

 private:
  /// Appends the token that is drawn from each state to the proposals of its sequence.
  void draw(const Matrix& states, std::span<const std::size_t> drafting,
            std::span<const AcceptedRows> accepted,
            std::vector<std::vector<std::int32_t>>& drafts) const;

  const Model& model_;
  std::size_t k_;
  const SamplingOptions& sampling_;
};

}  // namespace ingot::inference
