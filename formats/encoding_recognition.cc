#include "formats/encoding_recognition.h"

#include <optional>
#include <string>

#include <fmt/format.h>

namespace ingot::formats {
namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::string_view kPackedSuffix = ".weight_packed";

/// A way to name a scale: `stem + suffix` belongs to the weight `stem + weight_suffix`.
struct ScaleNaming {
  std::string_view suffix;
  std::string_view weight_suffix;
  /// Names of this form mean scales and nothing else, so one without a weight is a fault.
  bool is_distinct;
};

// First match wins: the longer suffixes end in the shorter ones.
constexpr std::array kScaleNamings = {
    ScaleNaming{".weight_scale_inv", ".weight", true},
    ScaleNaming{".weight_scale", ".weight", true},
    ScaleNaming{".scale", ".weight", false},
    ScaleNaming{"_scale_inv", "", true},
    ScaleNaming{"_scale", "", false},
};

/// Dtypes whose numbers mean nothing without a scale.
bool is_code_dtype(DType dtype) {
  switch (dtype) {
    case DType::kF8E4M3:
    case DType::kF8E5M2:
    case DType::kF8E4M3Fnuz:
    case DType::kF8E5M2Fnuz:
    case DType::kI8:
    case DType::kU8:
    case DType::kI32:
    case DType::kF4:
      return true;
    default:
      return false;
  }
}

bool is_scale_dtype(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBf16 || dtype == DType::kF8E8M0;
}

class Recogniser {
 public:
  Recogniser(const RecognitionInput& input, ErrorList& faults)
      : input_(input),
        faults_(faults),
        scale_of_(input.stored.size(), kNone),
        is_scale_(input.stored.size(), false) {}

  std::vector<LogicalTensor> run() {
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) pair_scale(i);
    std::vector<LogicalTensor> tensors;
    for (std::uint32_t i = 0; i < input_.stored.size(); ++i) {
      if (is_scale_[i]) continue;
      if (const auto encoding = encoding_of(i)) {
        LogicalTensor& tensor = tensors.emplace_back();
        tensor.name = input_.stored[i].name;
        tensor.shape = input_.stored[i].shape;
        tensor.encoding = *encoding;
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

  [[nodiscard]] std::optional<std::uint32_t> find_weight(std::string_view stem,
                                                         const ScaleNaming& naming) const {
    std::string name(stem);
    if (const auto weight = input_.names.find(name.append(naming.weight_suffix))) return weight;
    if (naming.weight_suffix.empty()) return std::nullopt;
    return input_.names.find(std::string(stem).append(kPackedSuffix));
  }

  /// Notes whose scale tensor `i` is, if it is one.
  void pair_scale(std::uint32_t i) {
    const StoredTensor& tensor = input_.stored[i];
    for (const ScaleNaming& naming : kScaleNamings) {
      if (!tensor.name.ends_with(naming.suffix) || tensor.name.size() == naming.suffix.size())
        continue;
      const auto stem =
          std::string_view(tensor.name).substr(0, tensor.name.size() - naming.suffix.size());
      const auto weight = find_weight(stem, naming);
      if (weight && is_code_dtype(input_.stored[*weight].dtype)) {
        assign(i, *weight);
      } else if (naming.is_distinct || (naming.suffix == ".scale" && is_surely_scale(tensor))) {
        is_scale_[i] = true;
        report_orphan(i, stem, naming, weight);
      }
      return;
    }
  }

  [[nodiscard]] bool is_surely_scale(const StoredTensor& tensor) const {
    return input_.names_are_known || tensor.dtype == DType::kF8E8M0;
  }

  void assign(std::uint32_t scale, std::uint32_t weight) {
    is_scale_[scale] = true;
    if (scale_of_[weight] == kNone) {
      scale_of_[weight] = scale;
      return;
    }
    fault(weight, ErrorCode::kDuplicate,
          fmt::format("has two scales, '{}' and '{}' (which one is meant? remove the other)",
                      input_.stored[scale_of_[weight]].name, input_.stored[scale].name));
  }

  void report_orphan(std::uint32_t scale, std::string_view stem, const ScaleNaming& naming,
                     std::optional<std::uint32_t> weight) {
    if (weight) {
      fault(
          scale, ErrorCode::kMissingTensor,
          fmt::format("is a scale, but '{}' is plain {} (was it cast without removing its scale?)",
                      input_.stored[*weight].name, dtype_name(input_.stored[*weight].dtype)));
    } else if (input_.is_complete) {
      fault(scale, ErrorCode::kMissingTensor,
            fmt::format("is a scale, but there is no '{}{}' (a file missing? fetch it again)", stem,
                        naming.weight_suffix));
    }
  }

  std::optional<Encoding> encoding_of(std::uint32_t i) {
    const StoredTensor& tensor = input_.stored[i];
    switch (tensor.dtype) {
      case DType::kF8E4M3:
        return fp8_encoding(i);
      case DType::kF8E5M2:
      case DType::kF8E4M3Fnuz:
      case DType::kF8E5M2Fnuz:
        fault(i, ErrorCode::kUnsupported,
              fmt::format("is {}, of the FP8 kinds this version decodes F8_E4M3 only",
                          dtype_name(tensor.dtype)));
        return std::nullopt;
      default:
        break;
    }
    if (const char* scheme = unsupported_scheme(i)) {
      fault(i, ErrorCode::kUnsupported,
            fmt::format("is {} holding {}, which this version cannot decode",
                        dtype_name(tensor.dtype), scheme));
      return std::nullopt;
    }
    return Encoding{.scheme = plain_scheme(tensor.dtype), .stored = {i}};
  }

  /// The name of a quantized encoding that is recognised but cannot be decoded, or null.
  [[nodiscard]] const char* unsupported_scheme(std::uint32_t i) const {
    const StoredTensor& tensor = input_.stored[i];
    const bool is_packed = tensor.name.ends_with(kPackedSuffix);
    if (scale_of_[i] == kNone)
      return is_packed ? "packed weights of unknown scheme (no weight_scale)" : nullptr;
    const DType scale = input_.stored[scale_of_[i]].dtype;
    switch (tensor.dtype) {
      case DType::kI8:
        // Two E2M1 codes in a byte; read as INT8 they would be garbage of the right shape.
        return scale == DType::kF8E8M0 ? "packed 4-bit weights (MXFP4, by its E8M0 scale)"
                                       : "INT8 weights (scheme int8)";
      case DType::kU8:
        return scale == DType::kF8E4M3 ? "packed 4-bit weights (NVFP4)"
                                       : "packed 4-bit weights (MXFP4)";
      case DType::kI32:
        return "packed integer weights (pack-quantized)";
      default:
        return "packed 4-bit weights";
    }
  }

  std::optional<Encoding> fp8_encoding(std::uint32_t i) {
    const StoredTensor& weight = input_.stored[i];
    if (scale_of_[i] == kNone) {
      if (input_.is_complete) {
        fault(i, ErrorCode::kMissingTensor,
              "is F8_E4M3 without a scale (no weight_scale_inv, weight_scale or scale beside it)");
      }
      return std::nullopt;
    }
    const StoredTensor& scale = input_.stored[scale_of_[i]];
    if (!is_scale_dtype(scale.dtype)) {
      fault(scale_of_[i], ErrorCode::kDtypeMismatch,
            fmt::format("is a scale in {}, must be F32, BF16 or F8_E8M0", dtype_name(scale.dtype)));
      return std::nullopt;
    }
    const auto [rows, cols] = input_.fp8_block;
    if (weight.shape.size() < 2) {
      fault(i, ErrorCode::kShapeMismatch,
            fmt::format("is F8_E4M3 of shape {}, block scales need two dimensions",
                        shape_text(weight.shape)));
      return std::nullopt;
    }
    const Shape expected = block_scale_shape(weight.shape, rows, cols);
    if (scale.shape != expected) {
      fault(scale_of_[i], ErrorCode::kShapeMismatch,
            fmt::format("is a scale of shape {}, a weight of shape {} in blocks of {}x{} needs {}",
                        shape_text(scale.shape), shape_text(weight.shape), rows, cols,
                        shape_text(expected)));
      return std::nullopt;
    }
    return Encoding{.scheme = SchemeId::kFp8Block,
                    .stored = {i, scale_of_[i]},
                    .block_rows = rows,
                    .block_cols = cols};
  }

  const RecognitionInput& input_;
  ErrorList& faults_;
  std::vector<std::uint32_t> scale_of_;  // per stored weight: its scale
  std::vector<bool> is_scale_;           // per stored tensor: belongs to a weight, or should
};

}  // namespace

std::vector<LogicalTensor> recognise_encodings(const RecognitionInput& input, ErrorList& faults) {
  return Recogniser(input, faults).run();
}

}  // namespace ingot::formats
