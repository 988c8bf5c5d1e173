#include "formats/block_scales.h"

#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/bfloat16.h"
#include "formats/float8.h"

namespace ingot::formats {
namespace {

std::vector<float> widen(const StoredTensor& stored, const std::vector<std::byte>& bytes) {
  const std::size_t n = bytes.size() * 8 / dtype_bits(stored.dtype);
  std::vector<float> scales(n);
  for (std::size_t i = 0; i < n; ++i) {
    if (stored.dtype == DType::kF32) {
      std::memcpy(&scales[i], &bytes[4 * i], 4);
    } else if (stored.dtype == DType::kBf16) {
      std::uint16_t half = 0;
      std::memcpy(&half, &bytes[2 * i], 2);
      scales[i] = float_from_bf16(half);
    } else if (stored.dtype == DType::kF8E8M0) {
      scales[i] = float_from_e8m0(static_cast<std::uint8_t>(bytes[i]));
    } else {
      throw Error(ErrorCode::kDtypeMismatch,
                  fmt::format("a scale of dtype {} (F32, BF16 and F8_E8M0 are known)",
                              dtype_name(stored.dtype)))
          .in_tensor(stored.name);
    }
  }
  return scales;
}

}  // namespace

std::vector<float> read_block_scales(const TensorSource& source, const LogicalTensor& tensor,
                                     const ScalePolicy& policy) {
  if (tensor.encoding.scheme != SchemeId::kFp8Block) return {};
  const std::uint32_t index = tensor.encoding.stored[static_cast<std::size_t>(Part::kScale)];
  const StoredTensor& stored = source.stored()[index];
  std::vector<std::byte> bytes(stored.n_bytes);
  source.read(index, 0, bytes);
  std::vector<float> scales = widen(stored, bytes);
  const std::uint64_t cols = stored.shape.back();
  for (std::size_t i = 0; i < scales.size(); ++i) {
    const bool good =
        std::isfinite(scales[i]) && (scales[i] > 0 || (scales[i] == 0 && policy.allow_zero));
    if (good) continue;
    throw Error(
        ErrorCode::kBadScale,
        fmt::format(
            "scale {} at row {}, column {} is {}; it must be finite and above zero (fetch the file "
            "again{})",
            stored.name, i / cols, i % cols, scales[i],
            scales[i] == 0 ? fmt::format(", or accept it with --allow 'zero-scale={}'", tensor.name)
                           : ""))
        .in_file(source.files()[stored.file].name)
        .in_tensor(tensor.name);
  }
  return scales;
}

}  // namespace ingot::formats
