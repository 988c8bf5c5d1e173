#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "formats/container/tensor.h"
#include "formats/storage/encoding.h"
#include "quantize/coded_matrix.h"

namespace ingot::inference {

using formats::MatrixView;
using quantize::CodedMatrix;

/// How the activations of a linear are quantized before it multiplies (docs: model reference, FP8,
/// W8A8, NVFP4).
struct ActivationFormat {
  formats::CodeKind code = formats::CodeKind::kInt8;  ///< kE4m3, kInt8 or kE2m1
  std::size_t group =
      0;  ///< columns that share a scale; 0: the whole row. A last group may be shorter
  bool power_of_two = false;  ///< scales rounded up to a power of two (ue8m0; MX always)
  /// Static: scale of every value (INT8, FP8), or NVFP4's global level over E4M3 block scales.
  std::optional<float> input_scale;
  std::int32_t input_offset = 0;  ///< static INT8: added to the code before clamping to [-128, 127]
};

/// True if activations can be quantized to these codes.
inline bool can_quantize_to(formats::CodeKind code) {
  using enum formats::CodeKind;
  return code == kE4m3 || code == kInt8 || code == kE2m1;
}

/// Rows of quantized activations. One code per byte (E2M1 too), row-major.
struct QuantizedRows {
  std::size_t rows = 0, cols = 0, group = 0, groups = 0;  ///< group: columns per scale
  formats::CodeKind code = formats::CodeKind::kInt8;
  std::vector<std::uint8_t> codes;
  std::vector<float> scales;  ///< effective, [rows, groups]
};

/// Dynamic INT8: s = amax / 127, code = rne(x / s) within +-127, s = 1 for a zero row. FP8: s =
/// max(amax, 1e-4) * fp32(1/448), up to a power of two where asked, code = e4m3(x / s) saturating.
/// NVFP4: block scale e4m3(amax / (6 * input_scale)) times input_scale. MX: power-of-two scales of
/// the OCP rule as in quantize's encoders. Static INT8: rne(x / input_scale) + offset; static FP8:
/// e4m3(x / input_scale). A group that holds a NaN or an infinity gets a NaN scale.
QuantizedRows quantize_activations(MatrixView<const float> x, const ActivationFormat& format);

/// Statically quantized INT8 (Ascend): y[n] = (sum + quant_bias[n]) * deq_scale[n].
struct StaticInt8 {
  const std::int32_t* quant_bias = nullptr;  ///< bias in steps of the product; null: no bias
  const float* deq_scale = nullptr;          ///< null: activation scale x weight scale
};

/// y[m, n] = sum over groups g, ascending, of (sum over k in g of a[m,k] * w[n,k]) * (sa[m,g] *
/// sw[n,g]). A group is where neither scale changes. INT8: a group's sum is exact in INT32. FP8 and
/// FP4: in the lanes of kDotLanes (matmul.h), from a group's first column on; each lane of a group
/// is multiplied by its scale and added to that lane of the row, and lanes are folded at the end of
/// the row. Lanes of an FP4 group are exact.
void quantized_matmul(const QuantizedRows& x, const CodedMatrix& w, const StaticInt8& fixed,
                      MatrixView<float> y, std::size_t threads);

}  // namespace ingot::inference
