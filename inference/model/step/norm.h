#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/step/step.h"
#include "inference/weights/block_weights.h"

namespace ingot::inference {

/// out = weight * x * 1/sqrt(mean(x^2) + eps) over each row, in FP32, the mean from sum_of_squares.
/// Unless the profile is kF32 the normalized value and its product with the weight are each rounded
/// to BF16, as transformers does. out may be x.
void rms_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
              float eps, formats::MatrixView<float> out);

/// Norms columns x of rows of `width` values in all, whose sums of squares are `squares`, as
/// rms_norm() does.
void rms_norm_of_part(Profile profile, formats::MatrixView<const float> x,
                      std::span<const float> squares, std::size_t width,
                      std::span<const float> weight, float eps, formats::MatrixView<float> out);

/// The weights of a norm of hidden states, queries or keys, with what the spec adds.
std::vector<float> norm_weights(const BlockWeights& weights, const ModelSpec& spec, WeightRole role,
                                std::size_t n);

/// Roles of the tensors of a norm: its weight, the bias of a layer norm, and the matrices of its
/// gate. The last three count where the layer has such rows.
struct NormRoles {
  WeightRole weight;
  std::optional<formats::FineRole> bias = {}, down = {}, up = {};
};

/// A norm of hidden states, or of states of another width.
struct HiddenNorm {
  NormSpec form;
  std::vector<float> weight, bias;
  Linear down, up;  ///< matrices of its gate; empty without one
  [[nodiscard]] bool empty() const { return weight.empty(); }
};
/// Reads the weights of a norm over `width` values, with what its form adds.
HiddenNorm hidden_norm(const BlockWeights& weights, std::size_t width, const NormSpec& form,
                       const NormRoles& roles);
/// The norm of each row, or of each of several inputs side by side.
Matrix normed(const StepContext& context, const Matrix& x, const HiddenNorm& norm);

/// out = (x - mean) / sqrt(variance + eps) * weight + bias over each row, in FP32, rounded once
/// unless the profile is kF32. The variance is biased. out may be x.
void layer_norm(Profile profile, formats::MatrixView<const float> x, std::span<const float> weight,
                std::span<const float> bias, float eps, formats::MatrixView<float> out);

/// The spec with frequencies times e^alpha, where they are learned: alpha [dim / 2], which all
/// layers share.
RopeSpec with_learned_frequencies(const WeightStore& weights, const RopeSpec& spec);

/// Cosines and sines of the pairs of some positions, [positions, dim / 2] each. Angles are FP32
/// products position x frequency, their cosines those of the FP32 angle rounded once. Unless the
/// profile is kF32 they are rounded to BF16, as transformers does.
class RopeAngles {
 public:
  RopeAngles(Profile profile, const RopeSpec& spec, std::span<const std::uint32_t> positions);

  /// Rotates the `dim` values of one head at the i-th position, in place: (u, w) becomes (u cos -
  /// w sin, w cos + u sin). Results stay where their pair stood. Unless the profile is kF32 every
  /// product and the sum are rounded to BF16.
  void rotate(std::size_t i, std::span<float> values) const;
  /// Rotates by the negative angle: undoes rotate(), but for rounding.
  void rotate_back(std::size_t i, std::span<float> values) const;

 private:
  void turn(std::size_t i, float direction, std::span<float> values) const;

  Profile profile_;
  bool interleaved_;
  Matrix cos_, sin_;
};

}  // namespace ingot::inference
