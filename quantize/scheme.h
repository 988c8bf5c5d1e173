#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/container/tensor.h"
#include "formats/storage/encoding.h"
#include "quantize/block_moments.h"
#include "quantize/coded_matrix.h"

namespace ingot::quantize {

/// Faults of a run, which the caller judges. Positions are elements within the run, row-major.
struct DecodeFaults {
  std::uint64_t nan_codes = 0;
  std::uint64_t first_nan = 0;  ///< position of the first, if any
};

/// How FP8 block scales are rounded: amax / 448 as it is, or up to a power of two.
enum class Fp8Grid : std::uint8_t { kAmax, kUe8m0 };

/// How the scale of a group is chosen by the schemes that search (docs/formats.md, "Scale search").
enum class ScaleSearch : std::uint8_t {
  kAmax,
  kFourOverSix,  ///< NVFP4 only
  kMse,
  kSigned,   ///< INT4 only: kMse, and negative scales too
  kHessian,  ///< least error by EncodeInput::moments; without them kMse
};

/// Choices of the encoder, which the bytes depend on.
struct EncodeOptions {
  Fp8Grid fp8_grid = Fp8Grid::kAmax;
  ScaleSearch search = ScaleSearch::kMse;
  /// NVFP4: kMse tries the E4M3 codes from `below` under the amax code to `above` over it, and up
  /// to `above_small` over it where the amax code is below 16.
  struct Window {
    int below = 3, above = 8, above_small = 16;
  } window;
};

/// A run of finite FP32 values to encode. It starts at the first row and column of a scale group
/// and holds whole groups; only groups at the matrix' own end may be shorter.
struct EncodeInput {
  formats::MatrixView<const float> values;
  std::uint64_t block_rows = 0, block_cols = 0;
  /// Tensor-wide scale: the result of Scheme::global, for schemes with one.
  float global = 0;
  bool global_divides = false;
  /// Schemes with Scheme::takes_scales: scales to use instead of computed ones, row-major over the
  /// groups of the run.
  std::span<const float> given_scales{};
  /// Schemes that search: how much an error in each column of the run matters, finite and not
  /// negative; empty: all columns alike. Weights the squared errors that searches compare.
  std::span<const float> importance{};
  /// kHessian: moments of the inputs of the run's columns, a block for every 16 of them, which
  /// divide the columns of a group. The error of a group is the sum of d^T S d over its rows and
  /// blocks. Empty: none are known.
  std::span<const MomentBlock> moments{};
  /// Values that codes and scales decoded to, all finite: where the scheme knows a scale under
  /// which every value of a group is a code, that group gets it. Schemes that search find one
  /// themselves if it is among their candidates.
  bool keeps_values = false;
  EncodeOptions options;

  /// The search that this input leaves to do.
  [[nodiscard]] ScaleSearch search() const {
    return options.search == ScaleSearch::kHessian && moments.empty() ? ScaleSearch::kMse
                                                                      : options.search;
  }
};

/// Places that a run's bytes go to.
struct EncodeOutput {
  std::byte* weight = nullptr;
  std::size_t weight_stride = 0;  ///< bytes from row to row
  /// One scale per group in scale_facts().scale_dtype, row-major; null for schemes without scales
  /// and for kFp8Tensor, whose one scale is the global.
  std::byte* scales = nullptr;
  std::size_t scale_stride = 0;  ///< bytes from a row of groups to the next
  /// INT4: one zero point per group, 0 to 15, row-major; null: none are chosen, and 8 means zero.
  /// With EncodeInput::given_scales they are here already.
  std::uint8_t* zeros = nullptr;
  std::size_t zero_stride = 0;  ///< bytes from a row of groups to the next
};

/// Values that an encoder could not hold. Positions are elements within the run, row-major.
struct EncodeFaults {
  std::uint64_t overflows = 0;  ///< kF16: finite values that became infinite
  std::uint64_t first_overflow = 0;
};

/// The arithmetic of a scheme: one row per SchemeId that is written.
struct Scheme {
  formats::SchemeId id;
  /// Encodes a run. Rounding: the header of the scheme's kernel and docs/formats.md.
  EncodeFaults (*encode)(const EncodeInput& in, const EncodeOutput& out);
  /// The tensor-wide scale as stored, from the largest magnitude of the fused group. Never 0, NaN
  /// or infinite. Null: the scheme has none. `divides`: kNvfp4 only, the divisor of
  /// compressed-tensors.
  float (*global)(float amax, const EncodeOptions& options, bool divides) = nullptr;
  /// Searches that may choose the scales; empty for a scheme without any.
  std::span<const ScaleSearch> searches{};
  bool takes_scales = false;    ///< EncodeInput::given_scales
  bool takes_fp8_grid = false;  ///< kUe8m0 leaves nothing to search
};

/// FP32 values of the run, which `out` has the shape of: each is code x scale, one FP32
/// multiplication. Where that is NaN (a NaN code, or a scale that is not finite) it is the quiet
/// NaN with the sign of the code. Counts the NaN codes of E4M3. Pure; the values are those of the
/// scalar twin on every SIMD target.
DecodeFaults decode(const CodedMatrix& in, formats::MatrixView<float> out);
namespace scalar {
DecodeFaults decode(const CodedMatrix& in, formats::MatrixView<float> out);
}  // namespace scalar

/// Returns the scheme; null when the id is never written, or has no numbers (kRaw).
const Scheme* find_scheme(formats::SchemeId id);

/// Half the distance of the two largest codes: an error above it x scale means that the value was
/// cut off at the largest code. 0 for plain schemes.
float half_top_step(formats::SchemeId id);

/// True if these options leave scales to search for, or to take by amax instead.
bool can_search(const Scheme& scheme, const EncodeOptions& options);

/// Returns the options as a scheme takes them: it searches by kMse where it does not have the
/// search.
EncodeOptions options_for(const Scheme& scheme, const EncodeOptions& options);

/// A direct path from one scheme's rows to a plain scheme's words, equal bit for bit to decode
/// followed by encode. Rows of `in` follow each other without a gap.
using Transcode = DecodeFaults (*)(const CodedMatrix& in, std::span<std::byte> out);

/// Returns the fused kernel for a pair, or null when there is none and values go through FP32 rows.
Transcode find_transcode(formats::SchemeId from, formats::SchemeId to);

/// True if values of `from` can be encoded as `to`.
bool can_convert(formats::SchemeId from, formats::SchemeId to);

}  // namespace ingot::quantize
