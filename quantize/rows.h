#pragma once

#include <cstdint>
#include <optional>

#include "formats/container/tensor.h"
#include "quantize/scheme.h"

namespace ingot::quantize {

/// Largest magnitude of the finite values; 0 when there is none.
float amax(formats::MatrixView<const float> values);

/// Largest finite magnitude that the run decodes to, as if by the scheme's decode and amax; NaN
/// codes do not count. E4M3 costs as much as reading: the largest byte of every group is enough.
float encoded_amax(const CodedMatrix& in);

/// Returns the position (row-major) of the first NaN or infinity; nullopt: there is none.
std::optional<std::uint64_t> first_nonfinite(formats::MatrixView<const float> values);

/// Replaces accepted nonfinite values: NaN by 0, an infinity by the largest finite magnitude of its
/// scale group with its sign (0 in a group without finite values). A side of 0 means the whole run.
void settle_nonfinite(formats::MatrixView<float> values, std::uint64_t block_rows,
                      std::uint64_t block_cols);
/// Replaces accepted nonfinite values of a run that is a part of its scale group, whose largest
/// finite magnitude is `amax`.
void settle_nonfinite(formats::MatrixView<float> values, float amax);

/// Rounds every value to BF16, to nearest even, in place.
void round_to_bf16(formats::MatrixView<float> values);

}  // namespace ingot::quantize
