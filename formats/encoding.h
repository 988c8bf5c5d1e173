#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/tensor.h"

namespace ingot::formats {

/// How numbers are held. The arithmetic is attached to the id in quantize/.
enum class SchemeId : std::uint8_t {
  kBf16,
  kF16,
  kF32,
  kFp8Block,  ///< E4M3 codes, one scale per block of rows x columns
  kRaw,       ///< any other plain dtype: copied, never computed with
};

/// The parts of an encoded tensor, in the order in which they stand in a record.
enum class Part : std::uint8_t { kWeight, kScale };
inline constexpr std::size_t kMaxParts = 2;

/// What formats knows of a scheme; one row per SchemeId.
struct SchemeFacts {
  SchemeId id;
  std::string_view name;     ///< as in recipes and reports
  std::string_view to_word;  ///< word accepted by --to, or empty
  std::size_t n_parts;
  bool quantized;            ///< false for plain floating point and raw
  std::string_view summary;  ///< one line for `ingot list schemes`
};

std::span<const SchemeFacts> schemes();
const SchemeFacts& scheme_facts(SchemeId id);
/// By name or --to word.
std::optional<SchemeId> find_scheme(std::string_view name);
/// The scheme of a plain tensor of this dtype.
SchemeId plain_scheme(DType dtype);
/// The dtype that holds a plain scheme's weight (kBf16, kF16, kF32 only).
DType plain_dtype(SchemeId id);

/// How one logical tensor is stored: which stored tensors hold it and how they decode.
struct Encoding {
  SchemeId scheme = SchemeId::kRaw;
  /// Index of the stored tensor per part; only the first scheme_facts(scheme).n_parts are
  /// meaningful.
  std::array<std::uint32_t, kMaxParts> stored{};
  std::uint64_t block_rows = 0;  ///< kFp8Block: rows and columns that share a scale
  std::uint64_t block_cols = 0;
};

/// Scales of a block-scaled matrix. Leading dimensions (stacked experts) each have their own grid.
/// Weight [..., N, K]; scale [..., ceil(N/block_rows), ceil(K/block_cols)].
Shape block_scale_shape(const Shape& weight, std::uint64_t block_rows, std::uint64_t block_cols);

}  // namespace ingot::formats
