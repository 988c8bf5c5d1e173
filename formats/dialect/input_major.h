#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/pattern.h"
#include "formats/config/model_config.h"
#include "formats/dialect/dialect.h"

namespace ingot::formats {

/// How AutoAWQ and AutoGPTQ store integer weights of N rows and K columns: input-major, `qweight`
/// with 32 / bits codes to an I32, `scales` [groups, N], `qzeros` [groups, N x bits / 32] with the
/// zero points of neighbouring rows in an I32, and `g_idx` [K] with the group of each column. Codes
/// of 3 bits are one stream, 32 of them in three words.
struct InputMajorForm {
  /// True if words of qweight hold rows of one column ([K, N / 8], AWQ) instead of columns of one
  /// row ([K / 8, N], GPTQ).
  bool packs_rows = false;
  /// True if the nibbles of a word of eight rows are in AWQ's order 0 2 4 6 1 3 5 7.
  bool is_interleaved = false;
  std::uint32_t zero_bias = 0;  ///< added to a stored zero point: 1 in GPTQ's first format
  bool is_symmetric = false;    ///< the config says that every zero point is the middle code
  bool has_order = false;       ///< the config says that g_idx is no run of groups (desc_act)
  /// Columns of a group as the config has it, 0 for a whole row; nullopt: it does not say.
  std::optional<std::uint64_t> group_size;
  std::uint64_t bits = 4;  ///< bits of a code, as the config has it; 2, 3, 4 and 8 are read

  /// Codes that fill whole words.
  [[nodiscard]] std::uint64_t codes_per_unit() const { return bits == 3 ? 32 : 32 / bits; }
  [[nodiscard]] std::uint64_t words_per_unit() const { return bits == 3 ? 3 : 1; }
};

/// A config's entry for some modules only: GPTQModel's `dynamic`, AutoRound's `extra_config`.
struct InputMajorOverride {
  std::string key;        ///< key as the config has it
  bool is_plain = false;  ///< modules are not quantized (GPTQModel's `-:`)
  Pattern modules;
  std::optional<std::uint64_t> bits, group_size;
  std::optional<bool> is_symmetric, has_order;
};

/// The form of a checkpoint's weights, and of those that differ.
struct InputMajorLayout : InputMajorForm {
  std::vector<InputMajorOverride> overrides;  ///< overrides by module; the first that matches holds

  [[nodiscard]] const InputMajorOverride* override_of(std::string_view module) const;
  [[nodiscard]] InputMajorForm form_of(std::string_view module) const;
};

/// The dialect of quant_method awq or gptq, or of auto-round where its packing_format says that the
/// bytes are theirs; null for anything else.
const Dialect* input_major_dialect(const ModelConfig& config);

/// The layout that quantization_config gives a checkpoint of one of these methods; nullopt for
/// others. Throws kUnsupported for other numbers of bits and for kernels' own layouts (gemv,
/// marlin).
std::optional<InputMajorLayout> input_major_layout(const ModelConfig& config);

}  // namespace ingot::formats
