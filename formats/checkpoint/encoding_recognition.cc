#include "formats/checkpoint/encoding_recognition.h"

#include <algorithm>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/part_names.h"
#include "formats/checkpoint/part_pairing.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kWeightSuffix = ".weight";

bool is_real_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF16;
}

/// Exponents alone. U8 where a writer had no name for it.
bool is_exponent_dtype(DType dtype) {
  return dtype == DType::kF8E8M0 || dtype == DType::kU8;
}

bool is_packed_name(std::string_view name) {
  return std::any_of(packed_suffixes().begin(), packed_suffixes().end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// `X.weight` for the codes `X.weight_packed`.
std::string logical_name(std::string_view stored) {
  for (const std::string_view suffix : packed_suffixes()) {
    if (!stored.ends_with(suffix)) continue;
    return std::string(stored.substr(0, stored.size() - suffix.size())).append(kWeightSuffix);
  }
  return std::string(stored);
}

class Recogniser {
 public:
  Recogniser(const RecognitionInput& input, ErrorList& faults)
      : input_(input), faults_(faults), paired_(pair_parts(input, faults)), found_(paired_.found) {}

  std::vector<LogicalTensor> run(std::vector<StoredParts>* refused) {
    std::vector<LogicalTensor> tensors;
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) {
      if (paired_.is_part[i]) continue;
      if (auto tensor = recognise(i)) {
        tensors.push_back(std::move(*tensor));
      } else if (refused != nullptr) {
        refused->push_back(found_[i].stored);
      }
    }
    return tensors;
  }

 private:
  void fault(std::uint32_t stored, ErrorCode code, std::string message) {
    const StoredTensor& tensor = input_.stored[stored];
    faults_.add(Error(code, std::move(message))
                    .in_file(input_.files[tensor.file].name)
                    .in_tensor(tensor.name));
  }

  std::optional<LogicalTensor> recognise(std::uint32_t i) {
    const StoredTensor& stored = input_.stored[i];
    LogicalTensor tensor;
    tensor.name = logical_name(stored.name);
    tensor.shape = stored.shape;
    if (tensor.name != stored.name && input_.names.find(tensor.name)) {
      fault(i, ErrorCode::kDuplicate,
            fmt::format("stands beside '{}' (which one is meant? remove the other)", tensor.name));
      return std::nullopt;
    }
    switch (stored.dtype) {
      case DType::kF8E4M3:
        return quantized(i, std::move(tensor), fp8_scheme(i));
      case DType::kF8E5M2:
      case DType::kF8E4M3Fnuz:
      case DType::kF8E5M2Fnuz:
        fault(i, ErrorCode::kUnsupported,
              fmt::format("is {}, of the FP8 kinds this version decodes F8_E4M3 only",
                          dtype_name(stored.dtype)));
        return std::nullopt;
      default:
        break;
    }
    const bool has_parts = count_parts(i) > 0;
    const bool is_packed = is_packed_name(stored.name);
    if (stored.dtype == DType::kI8 && has_parts)
      return quantized(i, std::move(tensor), int8_scheme(i));
    if (stored.dtype == DType::kU8 && has_parts)
      return quantized(i, std::move(tensor), fp4_scheme(i));
    if (has_parts || is_packed) {
      fault(i, ErrorCode::kUnsupported,
            fmt::format("is {} holding {}, which this version cannot decode",
                        dtype_name(stored.dtype), foreign_kind(i)));
      return std::nullopt;
    }
    tensor.encoding = {.scheme = plain_scheme(stored.dtype), .stored = found_[i].stored};
    return tensor;
  }

  [[nodiscard]] std::size_t count_parts(std::uint32_t i) const {
    std::size_t n = 0;
    found_[i].stored.for_each(
        [&](Part part, std::uint32_t) { n += part == Part::kWeight ? 0 : 1; });
    return n;
  }

  [[nodiscard]] const char* foreign_kind(std::uint32_t i) const {
    if (count_parts(i) == 0) return "packed weights of unknown scheme (no weight_scale)";
    return input_.stored[i].dtype == DType::kI32 ? "packed integer weights (pack-quantized)"
                                                 : "packed 4-bit weights";
  }

  /// Fills in encoding and decoded shape once the scheme is known, and looks at the other parts.
  std::optional<LogicalTensor> quantized(std::uint32_t i, LogicalTensor tensor,
                                         std::optional<SchemeId> scheme) {
    if (!scheme) return std::nullopt;
    if (scheme_facts(*scheme).code_bits == 4) tensor.shape = decoded_shape(i);
    const auto [rows, cols] = scale_group(*scheme, tensor.shape, input_.block);
    tensor.encoding = {.scheme = *scheme,
                       .stored = found_[i].stored,
                       .block_rows = rows,
                       .block_cols = cols,
                       .global_divides = found_[i].global_divides};
    if (!auxiliaries_fit(i, *scheme, tensor.shape)) return std::nullopt;
    return tensor;
  }

  /// [..., N, 2 x bytes]. The product of a header's shape is bounded by its file, so this fits.
  [[nodiscard]] Shape decoded_shape(std::uint32_t i) const {
    Shape shape = input_.stored[i].shape;
    if (!shape.empty()) shape.back() = checked_mul(shape.back(), 2).value_or(shape.back());
    return shape;
  }

  /// False, and reported, unless the codes have two dimensions and the scale is there. True with
  /// `scale` null when the checkpoint is incomplete: then nothing can be said.
  bool find_scale(std::uint32_t i, std::string_view looked_for, const StoredTensor*& scale) {
    const StoredTensor& weight = input_.stored[i];
    if (!found_[i].stored.has(Part::kScale)) {
      if (input_.is_complete) {
        fault(i, ErrorCode::kMissingTensor,
              fmt::format("is {} without a scale (no {} beside it)", dtype_name(weight.dtype),
                          looked_for));
      }
      return false;
    }
    if (weight.shape.size() < 2) {
      fault(i, ErrorCode::kShapeMismatch,
            fmt::format("is {} of shape {}, scales need two dimensions", dtype_name(weight.dtype),
                        shape_text(weight.shape)));
      return false;
    }
    scale = &input_.stored[found_[i].stored[Part::kScale]];
    return true;
  }

  std::optional<SchemeId> wrong_dtype(std::uint32_t i, std::string_view allowed) {
    const std::uint32_t scale = found_[i].stored[Part::kScale];
    fault(scale, ErrorCode::kDtypeMismatch,
          fmt::format("is a scale in {}, must be {}", dtype_name(input_.stored[scale].dtype),
                      allowed));
    return std::nullopt;
  }

  std::optional<SchemeId> wrong_shape(std::uint32_t i, const std::string& needs) {
    const StoredTensor& scale = input_.stored[found_[i].stored[Part::kScale]];
    fault(found_[i].stored[Part::kScale], ErrorCode::kShapeMismatch,
          fmt::format("is a scale of shape {}, a weight of shape {} needs {}",
                      shape_text(scale.shape), shape_text(input_.stored[i].shape), needs));
    return std::nullopt;
  }

  [[nodiscard]] std::string needed_block(const Shape& grid) const {
    return fmt::format("{} in blocks of {}x{}", shape_text(grid), input_.block[0], input_.block[1]);
  }

  std::optional<SchemeId> fp8_scheme(std::uint32_t i) {
    const StoredTensor* scale = nullptr;
    if (!find_scale(i, "weight_scale_inv, weight_scale or scale", scale)) return std::nullopt;
    const Shape& weight = input_.stored[i].shape;
    const Shape grid = block_scale_shape(weight, input_.block[0], input_.block[1]);
    const Shape groups = grid_of(SchemeId::kMxfp8, weight);
    const bool is_exponent = is_exponent_dtype(scale->dtype);
    if (scale->dtype != DType::kU8 && !is_real_dtype(scale->dtype) && !is_exponent)
      return wrong_dtype(i, "F32, BF16 or F8_E8M0");
    const bool may_be_f16 = found_[i].reach == ScaleReach::kAny && scale->shape != grid;
    if (scale->dtype == DType::kF16 && !may_be_f16) return wrong_dtype(i, "F32, BF16 or F8_E8M0");
    if (scale->dtype != DType::kU8 && scale->shape == grid) return SchemeId::kFp8Block;
    if (is_exponent && scale->shape == groups) return SchemeId::kMxfp8;
    if (scale->dtype == DType::kU8) {
      return found_[i].reach == ScaleReach::kBlock
                 ? wrong_dtype(i, "F32, BF16 or F8_E8M0")
                 : wrong_shape(i, shape_text(groups) + " if it is MXFP8, by its exponent scale");
    }
    if (found_[i].reach == ScaleReach::kBlock) return wrong_shape(i, needed_block(grid));
    if (is_per_row(scale->shape, weight)) return SchemeId::kFp8Channel;
    if (is_per_matrix(scale->shape, weight)) return SchemeId::kFp8Tensor;
    return wrong_shape(
        i, fmt::format("{}, {} or one value", needed_block(grid), shape_text(per_row(weight))));
  }

  std::optional<SchemeId> int8_scheme(std::uint32_t i) {
    if (!found_[i].stored.has(Part::kScale) && found_[i].stored.has(Part::kDeqScale))
      return static_int8_scheme(i);
    const StoredTensor* scale = nullptr;
    if (!find_scale(i, "weight_scale_inv, weight_scale, scale or deq_scale", scale))
      return std::nullopt;
    const Shape& weight = input_.stored[i].shape;
    // Two E2M1 codes in a byte; read as INT8 they would be garbage of the right shape.
    if (is_exponent_dtype(scale->dtype)) return mxfp4_scheme(i);
    if (!is_real_dtype(scale->dtype)) return wrong_dtype(i, "F32, BF16 or F16 (F8_E8M0 for MXFP4)");
    const Shape grid = block_scale_shape(weight, input_.block[0], input_.block[1]);
    const bool may_be_row = found_[i].reach == ScaleReach::kAny;
    if (may_be_row && is_per_row(scale->shape, weight)) return SchemeId::kInt8Channel;
    if (scale->shape == grid && scale->dtype != DType::kF16) {
      // Nothing but the config tells INT8 blocks from FP8 blocks under a wrong dtype.
      if (input_.quant_method != "fp8") return SchemeId::kInt8Block;
      fault(i, ErrorCode::kDtypeMismatch,
            "is I8 with a scale per block, but config.json says quant_method fp8 (INT8 blocks are "
            "blockwise_int8)");
      return std::nullopt;
    }
    return wrong_shape(
        i, may_be_row ? fmt::format("{} or {}", shape_text(per_row(weight)), needed_block(grid))
                      : needed_block(grid));
  }

  /// Ascend: the scale of the codes times that of the activations, and the latter.
  std::optional<SchemeId> static_int8_scheme(std::uint32_t i) {
    if (input_.stored[i].shape.size() < 2) {
      fault(i, ErrorCode::kShapeMismatch,
            fmt::format("is I8 of shape {}, scales need two dimensions",
                        shape_text(input_.stored[i].shape)));
      return std::nullopt;
    }
    if (found_[i].stored.has(Part::kInputScale)) return SchemeId::kInt8Channel;
    if (input_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            "has a deq_scale, which is its scale times that of the activations, but no input_scale "
            "(a file missing? fetch it again)");
    }
    return std::nullopt;
  }

  std::optional<SchemeId> mxfp4_scheme(std::uint32_t i) {
    const Shape needed = grid_of(SchemeId::kMxfp4, decoded_shape(i));
    if (input_.stored[found_[i].stored[Part::kScale]].shape == needed) return SchemeId::kMxfp4;
    return wrong_shape(
        i, shape_text(needed) + " if it is packed 4-bit codes (MXFP4, by its exponent scale)");
  }

  std::optional<SchemeId> fp4_scheme(std::uint32_t i) {
    const StoredTensor* scale = nullptr;
    if (!find_scale(i, "weight_scale", scale)) return std::nullopt;
    if (is_exponent_dtype(scale->dtype)) return mxfp4_scheme(i);
    if (scale->dtype != DType::kF8E4M3) return wrong_dtype(i, "F8_E4M3 (NVFP4) or U8 (MXFP4)");
    const Shape needed = grid_of(SchemeId::kNvfp4, decoded_shape(i));
    if (scale->shape != needed) {
      return wrong_shape(i, shape_text(needed) + " if it is packed 4-bit codes (NVFP4)");
    }
    if (found_[i].stored.has(Part::kGlobal)) return SchemeId::kNvfp4;
    if (input_.is_complete) {
      fault(i, ErrorCode::kMissingTensor,
            "is NVFP4 without a global scale (no weight_scale_2 or weight_global_scale beside it)");
    }
    return std::nullopt;
  }

  [[nodiscard]] static Shape grid_of(SchemeId scheme, const Shape& weight) {
    const auto [rows, cols] = scale_group(scheme, weight);
    return block_scale_shape(weight, rows, cols);
  }

  [[nodiscard]] static Shape per_row(const Shape& weight) {
    Shape shape = weight;
    shape.back() = 1;
    return shape;
  }
  [[nodiscard]] static bool is_per_row(const Shape& scale, const Shape& weight) {
    Shape flat = weight;
    flat.pop_back();
    return scale == per_row(weight) || scale == flat;
  }
  [[nodiscard]] static bool is_one_value(const Shape& shape) {
    return shape.empty() || shape == Shape{1};
  }
  /// Of stacked matrices each has its own, so [1] would be too few.
  [[nodiscard]] static bool is_per_matrix(const Shape& scale, const Shape& weight) {
    if (weight.size() == 2) return is_one_value(scale);
    Shape each = weight;
    each[each.size() - 2] = 1;
    each.back() = 1;
    return scale == each;
  }

  /// Looks at every part but codes and scale.
  bool auxiliaries_fit(std::uint32_t i, SchemeId scheme, const Shape& weight) {
    bool fits = true;
    const auto refuse = [&](std::uint32_t part, ErrorCode code, std::string message) {
      fault(part, code, std::move(message));
      fits = false;
    };
    found_[i].stored.for_each([&](Part part, std::uint32_t index) {
      if (part == Part::kWeight || part == Part::kScale) return;
      const StoredTensor& stored = input_.stored[index];
      const bool is_int8 = scheme == SchemeId::kInt8Channel;
      const bool belongs = part == Part::kGlobal       ? scheme == SchemeId::kNvfp4
                           : part == Part::kInputScale ? true
                                                       : is_int8;
      if (!belongs) {
        refuse(index, ErrorCode::kUnsupported,
               fmt::format("is {}, which a weight in {} does not have", part_meaning(part),
                           scheme_facts(scheme).name));
        return;
      }
      const bool is_wanted_dtype =
          part == Part::kQuantBias     ? stored.dtype == DType::kI32
          : part == Part::kGlobal      ? stored.dtype == DType::kF32
          : part == Part::kDeqScale    ? stored.dtype == DType::kF32 || stored.dtype == DType::kI64
          : part == Part::kInputOffset ? is_real_dtype(stored.dtype) || stored.dtype == DType::kI8
                                       : is_real_dtype(stored.dtype);
      if (!is_wanted_dtype) {
        refuse(index, ErrorCode::kDtypeMismatch,
               fmt::format("is {} in {}", part_meaning(part), dtype_name(stored.dtype)));
        return;
      }
      const bool is_of_rows =
          part == Part::kOffset || part == Part::kQuantBias || part == Part::kDeqScale;
      const bool has_shape =
          is_of_rows ? is_per_row(stored.shape, weight) : is_one_value(stored.shape);
      if (has_shape) return;
      refuse(index, ErrorCode::kShapeMismatch,
             fmt::format("is {} of shape {}, a weight of shape {} needs {}", part_meaning(part),
                         shape_text(stored.shape), shape_text(weight),
                         is_of_rows ? "one value per row" : "one value"));
    });
    return fits;
  }

  const RecognitionInput& input_;
  ErrorList& faults_;
  PairedParts paired_;
  const std::vector<FoundParts>& found_;
};

}  // namespace

std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults,
                                               std::vector<StoredParts>* refused) {
  return Recogniser(input, faults).run(refused);
}

}  // namespace ingot::formats
