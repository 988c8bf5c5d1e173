#pragma once

#include <cstdint>
#include <optional>

#include "formats/config/model_config.h"
#include "formats/dialect/dialect.h"

namespace ingot::formats {

/// How AutoAWQ and AutoGPTQ store INT4 weights of N rows and K columns: input-major, `qweight` with
/// eight codes to an I32, `scales` [groups, N], `qzeros` [groups, N / 8] with the zero points of
/// eight rows to an I32, and `g_idx` [K] with the group of each column.
struct InputMajorLayout {
  /// Words of qweight hold eight rows of one column ([K, N / 8], AWQ) instead of eight columns of
  /// one row ([K / 8, N], GPTQ).
  bool packs_rows = false;
  /// Nibbles of a word that holds eight rows stand in AWQ's order 0 2 4 6 1 3 5 7.
  bool is_interleaved = false;
  std::uint32_t zero_bias = 0;  ///< what is added to a stored zero point: 1 in GPTQ's first format
  bool is_symmetric = false;    ///< the config says that every zero point is 8
  bool has_order = false;       ///< the config says that g_idx is no run of groups (desc_act)
  /// Columns of a group as the config has it, 0 for a whole row; nothing: it does not say.
  std::optional<std::uint64_t> group_size;
};

/// The dialect of quant_method awq or gptq, or of auto-round where its packing_format says that the
/// bytes are theirs; null for anything else.
const Dialect* input_major_dialect(const ModelConfig& config);

/// What quantization_config says of a checkpoint of one of these; nothing for any other.
/// kUnsupported for other than 4 bits and for kernels' own layouts (gemv, marlin).
std::optional<InputMajorLayout> input_major_layout(const ModelConfig& config);

}  // namespace ingot::formats
