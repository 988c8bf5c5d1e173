#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "formats/encoding.h"
#include "formats/tensor.h"

namespace ingot::quantize {

/// A run of rows of one encoded matrix in memory. Leading dimensions are flattened: row r of a
/// stacked [E, N, K] tensor belongs to matrix r / N.
struct EncodedRows {
  const std::byte* weight = nullptr;  ///< rows x cols elements of the payload, rows contiguous
  std::size_t rows = 0;
  std::size_t cols = 0;         ///< columns of this run
  std::uint64_t first_row = 0;  ///< of the flattened tensor
  std::uint64_t first_col = 0;  ///< a multiple of block_cols
  // Block scales (empty for plain schemes), decoded to F32: row-major over the whole tensor,
  // [matrices x scale_rows_per_matrix, scale_cols].
  std::span<const float> scales{};
  std::uint64_t rows_per_matrix = 0;  ///< N
  std::uint64_t scale_cols = 0;       ///< ceil(K / block_cols)
  std::uint64_t block_rows = 0;
  std::uint64_t block_cols = 0;
};

/// What went wrong in a run, to be judged by the caller. Positions are elements within the run,
/// row-major.
struct DecodeFaults {
  std::uint64_t nan_codes = 0;
  std::uint64_t first_nan = 0;  ///< position of the first, if any
};

/// The arithmetic of a scheme: one row per SchemeId that can be computed with.
struct Scheme {
  formats::SchemeId id;
  std::size_t element_bytes;  ///< of one element of the payload
  /// FP32 values of the run, exactly code x scale with one rounding. out is rows x cols. Null:
  /// cannot be decoded.
  DecodeFaults (*decode)(const EncodedRows& in, formats::MatrixView<float> out);
  /// Encodes FP32 rows into the payload (schemes without scales). Null: cannot be encoded yet.
  void (*encode)(formats::MatrixView<const float> in, std::span<std::byte> out);
};

/// Null when the id has no arithmetic (kRaw).
const Scheme* find_scheme(formats::SchemeId id);

/// A direct path from one scheme's rows to another's payload, equal bit for bit to decode followed
/// by encode.
using Transcode = DecodeFaults (*)(const EncodedRows& in, std::span<std::byte> out);

/// The transcoder for a pair: the fused kernel where there is one, else decode and encode through a
/// small buffer. Null when `from` cannot be decoded or `to` cannot be encoded.
Transcode find_transcode(formats::SchemeId from, formats::SchemeId to);

}  // namespace ingot::quantize
