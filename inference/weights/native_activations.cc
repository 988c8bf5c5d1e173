#include "inference/weights/native_activations.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/storage/block_scales.h"

namespace ingot::inference {
namespace {

using formats::Activations;
using formats::CodeKind;
using formats::LogicalTensor;
using formats::Part;
using formats::StoredTensor;
using formats::TensorSource;

enum class DynamicGroup : std::uint8_t { kRow, kBlockCols };
enum class Scales : std::uint8_t {
  kF32,          ///< dynamic: as they come
  kAsConfig,     ///< powers of two where the config says scale_fmt ue8m0
  kPowerOfTwo,   ///< always, and never static
  kUnderGlobal,  ///< always below the stored input scale
};

/// What kernels of the target do with the input of a scheme's weights.
struct NativeInput {
  CodeKind code;
  DynamicGroup group;
  Scales scales;
};

NativeInput native_input(const formats::SchemeFacts& scheme) {
  NativeInput input{.code = scheme.code,
                    .group = scheme.group_cols > 1 ? DynamicGroup::kBlockCols : DynamicGroup::kRow,
                    .scales = Scales::kF32};
  if (scheme.has_global) {
    input.scales = Scales::kUnderGlobal;
  } else if (scheme.scale_dtype == formats::DType::kF8E8M0) {
    input.scales = Scales::kPowerOfTwo;
  } else if (scheme.code == CodeKind::kE4m3 && input.group == DynamicGroup::kBlockCols) {
    input.scales = Scales::kAsConfig;
  }
  return input;
}

Error bad_part(const TensorSource& source, const LogicalTensor& tensor, Part part, ErrorCode code,
               const std::string& fact) {
  const StoredTensor& stored = source.stored()[tensor.encoding.stored[part]];
  return Error(code, fmt::format("{} {}", stored.name, fact))
      .in_file(source.files()[stored.file].name)
      .in_tensor(tensor.name);
}

float read_number(const TensorSource& source, std::uint32_t index) {
  const StoredTensor& stored = source.stored()[index];
  std::vector<std::byte> bytes(stored.n_bytes);
  source.read(index, 0, bytes);
  if (stored.dtype == formats::DType::kI8)
    return static_cast<float>(static_cast<std::int8_t>(std::to_integer<std::uint8_t>(bytes[0])));
  float value = 0;
  formats::widen_scales(stored.dtype, bytes, std::nullopt, {&value, 1});
  return value;
}

float read_input_scale(const TensorSource& source, const LogicalTensor& tensor) {
  if (!tensor.encoding.stored.has(Part::kInputScale)) {
    throw Error(ErrorCode::kMissingTensor,
                fmt::format("has no input scale, which its {} activations need (run it with "
                            "--profile bf16, or convert it with --activations)",
                            formats::scheme_facts(tensor.encoding.scheme).name))
        .in_tensor(tensor.name);
  }
  const float stored = read_number(source, tensor.encoding.stored[Part::kInputScale]);
  // compressed-tensors stores the reciprocal of both global scales of NVFP4.
  const float scale = tensor.encoding.global_divides ? 1.0F / stored : stored;
  if (std::isfinite(stored) && std::isfinite(scale) && scale > 0) return scale;
  throw bad_part(
      source, tensor, Part::kInputScale, ErrorCode::kBadScale,
      fmt::format("is {}; it must be finite and above zero (fetch the file again)", stored));
}

std::int32_t read_input_offset(const TensorSource& source, const LogicalTensor& tensor) {
  if (!tensor.encoding.stored.has(Part::kInputOffset)) return 0;
  const float offset = read_number(source, tensor.encoding.stored[Part::kInputOffset]);
  if (offset >= -128 && offset <= 127 && std::nearbyint(offset) == offset)
    return static_cast<std::int32_t>(offset);
  throw bad_part(source, tensor, Part::kInputOffset, ErrorCode::kCorrupt,
                 fmt::format("is {}; it must be a whole number from -128 to 127", offset));
}

bool has_power_of_two_scales(const TensorSource& source) {
  const auto& quantization = source.config().quantization;
  return quantization && quantization->scale_fmt == "ue8m0";
}

}  // namespace

std::optional<ActivationFormat> native_activations(const TensorSource& source,
                                                   const LogicalTensor& tensor,
                                                   Activations activations) {
  const formats::SchemeFacts& scheme = formats::scheme_facts(tensor.encoding.scheme);
  if (!scheme.quantized || activations == Activations::kWeightOnly) return std::nullopt;
  const NativeInput input = native_input(scheme);
  ActivationFormat format{.code = input.code};
  const bool is_static = activations == Activations::kStatic;
  // This is all that can be meant of a weight that nobody says anything about.
  if (!is_static && input.scales == Scales::kUnderGlobal &&
      !tensor.encoding.stored.has(Part::kInputScale))
    return std::nullopt;
  if (is_static && input.scales == Scales::kPowerOfTwo) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("has static activations, which {} does not know (run it with "
                            "--profile bf16)",
                            scheme.name))
        .in_tensor(tensor.name);
  }
  if (is_static || input.scales == Scales::kUnderGlobal)
    format.input_scale = read_input_scale(source, tensor);
  if (is_static && input.code == CodeKind::kInt8)
    format.input_offset = read_input_offset(source, tensor);
  // One static scale serves the whole row; below NVFP4's each block still has its own.
  const bool is_grouped = !is_static || input.scales == Scales::kUnderGlobal;
  if (is_grouped && input.group == DynamicGroup::kBlockCols)
    format.group = static_cast<std::size_t>(tensor.encoding.block_cols);
  format.power_of_two =
      !is_static && (input.scales == Scales::kPowerOfTwo ||
                     (input.scales == Scales::kAsConfig && has_power_of_two_scales(source)));
  return format;
}

}  // namespace ingot::inference
