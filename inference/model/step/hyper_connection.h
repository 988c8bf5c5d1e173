#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/spec/layer_spec.h"

// Manifold-constrained hyper-connections: the residual of a token is n streams of `hidden` values
// instead of one, side by side in a row of n x hidden. A block (attention, feed-forward) reads one
// sum of the streams and its output is added to all of them, with weights that depend on the token.
// Source: DeepSeek-V4's paper, 2.2, and transformers 5.23, deepseek_v4 and glm5_next.
//
//   u    = x / sqrt(mean(x^2) + norm_eps)                      x: the row, n x hidden values
//   w    = fn u                                                (2 + n) n values: pre, post, mix
//   pre  = sigmoid(scale[0] w_pre + base_pre) + eps            n
//   post = magnitude sigmoid(scale[1] w_post + base_post)              n
//   mix  = sinkhorn(softmax over rows of (scale[2] w_mix + base_mix) + eps)     n x n
//   in   = sum over i of pre[i] x[i]
//   x'[j] = post[j] block(in) + sum over i of mix[i][j] x[i]
//
// Where streams are not mixed (transformers 5.24, hy_v4), mix is 1, w and fn lack its part, and
// post has eps added. sinkhorn divides the columns by their sums + eps, and then rounds - 1 times
// the rows and the columns, so that both sum to about one.

namespace ingot::inference {

/// The weights of one hyper-connection: fn [(2 + n) n, n x hidden] row-major, base [(2 + n) n],
/// scale [3], or 2 n in place of (2 + n) n and scale [2] where streams are not mixed. For the head,
/// which has only the part `pre`: fn [n, n x hidden], base [n], scale [1].
struct HyperWeights {
  std::vector<float> fn, base, scale;
};

/// Input of a block, and the factors with which its output goes back.
struct HyperInput {
  Matrix collapsed;  ///< [rows, hidden]
  Matrix post;       ///< [rows, n]
  Matrix mix;        ///< [rows, n x n], row i is of the stream that is read; without columns: 1
};

/// Collapses the streams for a block, in FP32 throughout; unless the profile is kF32 the collapsed
/// row, post and mix are each rounded to BF16 once, as transformers does. `streams` is [rows, n x
/// hidden].
HyperInput hyper_input(Profile profile, const HyperSpec& spec, const HyperWeights& weights,
                       const Matrix& streams, std::size_t threads);

/// Puts a block's output [rows, hidden] into the streams, in place. Sums begin with the output and
/// go over ascending i.
void hyper_output(Profile profile, const HyperInput& input, const Matrix& output, Matrix& streams);

/// Collapses the streams to [rows, hidden] for the final norm. Without a learned head `weights` is
/// not read.
Matrix hyper_head(Profile profile, const HyperSpec& spec, const HyperWeights& weights,
                  const Matrix& streams, std::size_t threads);

/// Returns n copies of every row: the streams of an embedding.
Matrix hyper_streams(const HyperSpec& spec, const Matrix& embedded);

/// Turns logits into a mixing matrix, n x n in place.
void sinkhorn(std::span<float> logits, std::size_t n, std::size_t rounds, float eps);

}  // namespace ingot::inference
