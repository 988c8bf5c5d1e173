#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/config/model_config.h"
#include "formats/container/tensor.h"
#include "formats/family/family.h"
#include "formats/storage/encoding.h"

namespace ingot::formats {

/// One weight of the model, whatever its dialect or layout.
struct LogicalTensor {
  std::string name;  ///< canonical Hugging Face name of the weight, e.g. `...q_a_proj.weight`
  Shape shape;       ///< shape of the decoded weight
  Encoding encoding;
  const TensorRule* rule = nullptr;  ///< the family's row; null for tensors outside the grammar
  std::optional<std::uint32_t> layer;
  std::optional<std::uint32_t> expert;
  /// Orientation of the matrices of stacked experts here: by their shape, or by the family's row if
  /// the shape does not tell it, unless a view turns them (formats/experts/expert_views.h).
  StackOrder stack = StackOrder::kNone;
  bool is_unknown = false;  ///< true: the family has rows, and no row has this name
  /// The checkpoint that gave it to a composed one: index into Checkpoint::givers().
  std::uint32_t giver = 0;
};
inline Role role_of(const LogicalTensor& tensor) {
  return tensor.is_unknown ? Role::kUnknown : role_of(tensor.rule);
}
inline bool is_quantized(const LogicalTensor& tensor) {
  return is_quantized(tensor.encoding.scheme);
}

/// A weights file of a source.
struct SourceFile {
  std::string name;  ///< bare file name
  std::uint64_t n_bytes = 0;
  std::uint64_t data_start = 0;
};

/// The error of a stored tensor, with the name of its file and its own.
template <typename... Args>
Error fault_of(std::span<const SourceFile> files, const StoredTensor& tensor, ErrorCode code,
               fmt::format_string<Args...> format, Args&&... args) {
  return Error(code, fmt::format(format, std::forward<Args>(args)...))
      .in_file(files[tensor.file].name)
      .in_tensor(tensor.name);
}

/// The source that convert, verify and inference read: a model as logical tensors over stored
/// bytes.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  [[nodiscard]] virtual const ModelConfig& config() const = 0;
  [[nodiscard]] virtual const Family& family() const = 0;
  /// The tensors in source order: by file, then by offset of the weight.
  [[nodiscard]] virtual std::span<const LogicalTensor> tensors() const = 0;
  [[nodiscard]] virtual std::span<const StoredTensor> stored() const = 0;
  [[nodiscard]] virtual std::span<const SourceFile> files() const = 0;
  /// Fills `out` with bytes of a stored tensor, from `offset` within it. Safe from many threads.
  virtual void read(std::uint32_t stored, std::uint64_t offset, std::span<std::byte> out) const = 0;
};

}  // namespace ingot::formats
