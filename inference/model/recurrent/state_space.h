#pragma once

#include <cstddef>
#include <optional>

namespace ingot::inference {

/// A selective state space (Mamba-2). Heads share B and C in groups.
struct StateSpaceSpec {
  std::size_t heads = 0, head_dim = 0, groups = 1, state = 0;
  std::size_t kernel = 0;       ///< tokens of the convolution
  std::size_t norm_groups = 0;  ///< groups of values that are normed together; 0: `groups`
  float least_step = 0;
  std::optional<float> most_step;
  bool has_norm = true;            ///< false: the heads' outputs are gated only
  bool norms_before_gate = false;  ///< the norm is of the output without its gate
  /// Factors of the parts of the projection: gate, values, B, C and step.
  float z_factor = 1.0F, x_factor = 1.0F, b_factor = 1.0F, c_factor = 1.0F, dt_factor = 1.0F;
  /// Biases that must be there; false: they are read where they are there.
  bool convolution_bias = false, projection_bias = false, output_bias = false;
  bool operator==(const StateSpaceSpec&) const = default;
};

}  // namespace ingot::inference
