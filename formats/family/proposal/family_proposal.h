#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "formats/config/model_config.h"
#include "formats/container/tensor.h"

namespace ingot::formats {

/// A weight of a model of which no family is known.
struct UnknownWeight {
  std::string_view name;
  const Shape* shape = nullptr;  ///< decoded
  DType dtype{};                 ///< dtype as stored
  bool is_quantized = false;
  std::array<std::uint64_t, 2> block = {0, 0};  ///< rows and columns that share a scale
  std::uint64_t n_bytes = 0;                    ///< bytes as stored, with all parts
};

/// The rows of a proposal that only copy, where the largest tensors are among them: a line that
/// says which, and their share of the bytes; else empty.
std::string other_share(std::span<const UnknownWeight> weights, const ModelConfig& config);

/// A family for these weights, as YAML: a row for each kind of name, its role by the usual
/// spellings, its shape in terms of the config, its layers by where it occurs. A guess ends with a
/// comment, `# guessed: ...`. The family is called as the model type, with `_` in place of
/// characters that no name of a family has. Towers, lookup tables, and names of other characters
/// than those of families, get no rows. A row that parse_family() would refuse with the others
/// becomes a comment with the reason.
std::string propose_family(const ModelConfig& config, std::span<const UnknownWeight> weights);

}  // namespace ingot::formats
