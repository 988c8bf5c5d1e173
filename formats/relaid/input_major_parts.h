#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/dialect/input_major.h"
#include "formats/storage/tensor_source.h"

namespace ingot::formats {

/// Codes of INT4 in a word.
inline constexpr std::uint64_t kCodesPerWord = 8;

/// A weight [rows, cols] as AWQ and GPTQ store it, or, of 8 bits, as compressed-tensors does.
struct InputMajorWeight {
  StoredTensor codes, scales;
  std::optional<StoredTensor> zeros, order;
  std::uint64_t rows = 0, cols = 0, groups = 0;
  InputMajorForm form = {};
  /// compressed-tensors: the words of a row follow each other.
  bool is_output_major = false;
};

/// `X` of `X.PART`.
std::string_view module_stem(std::string_view name);

/// The stored tensors that are parts of such weights, found by their names: `X.qweight`,
/// `X.scales`, `X.qzeros` and `X.g_idx`.
class InputMajorParts {
 public:
  struct Input {
    std::span<const StoredTensor> stored;  ///< tensors, which must outlive this
    std::span<const SourceFile> files;     ///< files for reports
    bool is_complete = true;               ///< false: a part that is not here is no fault
    ErrorList& faults;
  };
  enum Kind : std::size_t { kCodes, kScales, kZeros, kOrder, kKinds };
  /// Parts of a weight by kind; null: there is none.
  using OfWeight = std::array<const StoredTensor*, kKinds>;

  InputMajorParts(const InputMajorLayout& layout, const Input& input);

  /// The parts of the weight that a stored tensor is a part of; null when it is of none.
  [[nodiscard]] const OfWeight* find(const StoredTensor& tensor) const;
  /// True if every part that the layout needs is here.
  [[nodiscard]] bool is_whole(const OfWeight& parts) const { return lacking(parts) == kKinds; }
  /// The weight of these parts; nullopt, and reported, where they make none: one is missing
  /// (kMissingTensor), has another shape, group or number of bits than the config says
  /// (kShapeMismatch, kMismatch) or dtype (kDtypeMismatch), or bits that are not read
  /// (kUnsupported, once for each entry of the config).
  std::optional<InputMajorWeight> weight_of(const OfWeight& parts);
  /// Reports a stored tensor that has the name under which another is read (kDuplicate).
  void require_free(const StoredTensor& made_of, const std::string& name);

 private:
  [[nodiscard]] bool is_packed(const OfWeight& parts) const;
  [[nodiscard]] std::size_t lacking(const OfWeight& parts) const;
  bool has_bits(const InputMajorWeight& weight);
  void fault(const StoredTensor& tensor, ErrorCode code, std::string message);
  bool has_dtypes(const InputMajorWeight& weight);
  bool has_shapes(InputMajorWeight& weight);

  const InputMajorLayout& layout_;
  const Input in_;
  std::unordered_map<std::string_view, OfWeight> parts_;  // parts by stem
  std::unordered_map<std::string_view, const StoredTensor*> names_;
  /// Bits that have been reported, by the config's entry.
  std::set<std::pair<const InputMajorOverride*, std::uint64_t>> told_bits_;
};

/// Tells for each stored tensor if it is a part of such a weight that lacks another part.
std::vector<bool> parts_of_torn_weights(const InputMajorLayout& layout,
                                        std::span<const StoredTensor> stored);

}  // namespace ingot::formats
