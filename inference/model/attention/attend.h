#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "formats/container/tensor.h"
#include "inference/base/profile.h"

namespace ingot::inference {

/// What all heads of a layer share.
struct AttentionNumbers {
  Profile profile = Profile::kF32;
  float scale = 1.0F;
  std::size_t threads = 1;
};

/// A share of the scores: queries [Q, d] against keys [T, d].
struct ScorePart {
  formats::MatrixView<const float> queries, keys;
};

/// out[i] = sum over t < visible(i) of softmax_t(scale * sum over parts (q_i . k_t)) * values[t].
/// `parts` holds one or two. Scores take O(T) memory whatever Q: queries go in blocks. A query's
/// result depends on itself and the keys it sees alone: scores are dot(), the softmax runs over t
/// ascending, and values are added in ascending t. Unless the profile is kF32, scores, scaled
/// scores, probabilities and results are rounded to BF16. `visible` is 1 to T and may be asked for
/// any query.
void attend(const AttentionNumbers& numbers, std::span<const ScorePart> parts,
            formats::MatrixView<const float> values,
            const std::function<std::size_t(std::size_t)>& visible, formats::MatrixView<float> out);

}  // namespace ingot::inference
