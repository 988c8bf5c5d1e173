#include "inference/weights/native_activations.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/dialect/dialect_words.h"
#include "formats/storage/block_scales.h"
#include "formats/storage/tensor_source.h"

namespace ingot::inference {

using formats::Activations;
using formats::CodeKind;
using formats::LogicalTensor;
using formats::Part;
using formats::StoredTensor;
using formats::TensorSource;

namespace {

Error bad_part(const TensorSource& source, const LogicalTensor& tensor, Part part, ErrorCode code,
               const std::string& fact) {
  const StoredTensor& stored = source.stored()[tensor.encoding.stored[part]];
  return Error(code, "{} {}", stored.name, fact)
      .in_file(source.files()[stored.file].name)
      .in_tensor(tensor.name);
}

// Reads the number of one matrix, where a stack has a number for each.
float read_number(const TensorSource& source, std::uint32_t index, std::size_t matrix) {
  const StoredTensor& stored = source.stored()[index];
  const std::size_t width = formats::dtype_bits(stored.dtype) / 8;
  const std::size_t n = stored.n_bytes / width;
  INGOT_CHECK(n == 1 || matrix < n);
  std::vector<std::byte> bytes(width);
  source.read(index, n == 1 ? 0 : matrix * width, bytes);
  if (stored.dtype == formats::DType::kI8)
    return static_cast<float>(static_cast<std::int8_t>(std::to_integer<std::uint8_t>(bytes[0])));
  float value = 0;
  formats::widen_scales(stored.dtype, bytes, std::nullopt, {&value, 1});
  return value;
}

float input_scale_of(const TensorSource& source, const LogicalTensor& tensor, std::size_t matrix) {
  if (!tensor.encoding.stored.has(Part::kInputScale)) {
    throw Error(ErrorCode::kMissingTensor,
                "has no input scale, which its {} activations need (run it with --profile bf16, or "
                "convert it with --activations)",
                formats::scheme_facts(tensor.encoding.scheme).name)
        .in_tensor(tensor.name);
  }
  const float stored = read_number(source, tensor.encoding.stored[Part::kInputScale], matrix);
  // compressed-tensors stores the reciprocal of both global scales of NVFP4.
  const float scale = tensor.encoding.global_divides ? 1.0F / stored : stored;
  if (std::isfinite(stored) && std::isfinite(scale) && scale > 0) return scale;
  throw bad_part(
      source, tensor, Part::kInputScale, ErrorCode::kBadScale,
      fmt::format("is {}; it must be finite and above zero (fetch the file again)", stored));
}

std::int32_t read_input_offset(const TensorSource& source, const LogicalTensor& tensor,
                               std::size_t matrix) {
  if (!tensor.encoding.stored.has(Part::kInputOffset)) return 0;
  const float offset = read_number(source, tensor.encoding.stored[Part::kInputOffset], matrix);
  if (offset >= -128 && offset <= 127 && std::nearbyint(offset) == offset)
    return static_cast<std::int32_t>(offset);
  throw bad_part(source, tensor, Part::kInputOffset, ErrorCode::kCorrupt,
                 fmt::format("is {}; it must be a whole number from -128 to 127", offset));
}

float rounded_to_bf16(float value) {
  return formats::float_from_bf16(formats::bf16_from_float(value));
}

bool has_power_of_two_scales(const TensorSource& source) {
  const auto& quantization = source.config().quantization;
  return quantization && quantization->scale_fmt == "ue8m0";
}

}  // namespace

std::optional<ActivationFormat> native_activations(const TensorSource& source,
                                                   const LogicalTensor& tensor, std::size_t matrix,
                                                   Activations activations) {
  const formats::SchemeFacts& scheme = formats::scheme_facts(tensor.encoding.scheme);
  if (!scheme.quantized || activations == Activations::kWeightOnly) return std::nullopt;
  if (!can_quantize_to(scheme.code)) {
    throw Error(ErrorCode::kUnsupported,
                "has quantized activations with {}, which this version does not compute (run it "
                "with --profile bf16)",
                scheme.name)
        .in_tensor(tensor.name);
  }
  const bool is_static = activations == Activations::kStatic;
  // Block scales below a stored input scale (NVFP4), or powers of two that are never static (MX).
  const bool is_under_global = scheme.has_global;
  const bool is_mx = !is_under_global && scheme.scale_dtype == formats::DType::kF8E8M0;
  const bool has_groups = scheme.group_cols > 1;
  ActivationFormat format{.code = scheme.code};
  // Weight-only is the only possible meaning where nothing is declared.
  if (!is_static && is_under_global && !tensor.encoding.stored.has(Part::kInputScale))
    return std::nullopt;
  if (is_static && is_mx) {
    throw Error(ErrorCode::kUnsupported,
                "has static activations, which {} does not know (run it with --profile bf16)",
                scheme.name)
        .in_tensor(tensor.name);
  }
  if (is_static || is_under_global) format.input_scale = input_scale_of(source, tensor, matrix);
  if (is_static && format.code == CodeKind::kInt8)
    format.input_offset = read_input_offset(source, tensor, matrix);
  // One static scale serves the whole row; below NVFP4's each block still has its own.
  if (has_groups && (!is_static || is_under_global))
    format.group = static_cast<std::size_t>(tensor.encoding.block_cols);
  // The config decides about FP8 per block.
  const bool is_fp8_block = !is_under_global && format.code == CodeKind::kE4m3 && has_groups;
  format.power_of_two = !is_static && (is_mx || (is_fp8_block && has_power_of_two_scales(source)));
  return format;
}

float native_step(const TensorSource& source, const LogicalTensor& tensor, Part part) {
  if (formats::method_of(source.config()) != formats::kGemmaMethod) return 0;
  if (!tensor.encoding.stored.has(part)) return 0;
  const float stored = read_number(source, tensor.encoding.stored[part], 0);
  const float step = rounded_to_bf16(stored);
  if (std::isfinite(step) && step > 0) return step;
  throw bad_part(
      source, tensor, part, ErrorCode::kBadScale,
      fmt::format("is {}; it must be finite and above zero (fetch the file again)", stored));
}

void round_to_steps(float step, MatrixView<float> values) {
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (float& value : std::span(values.row(r), values.cols)) {
      const float quotient = rounded_to_bf16(rounded_to_bf16(value) / step);
      value = rounded_to_bf16(std::clamp(std::nearbyint(quotient), -128.0F, 127.0F) * step);
    }
  }
}

}  // namespace ingot::inference
