#include "quantize/repack.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "formats/base/error.h"
#include "formats/container/float8.h"
#include "quantize/kernels/scales/nvfp4_scales.h"

namespace ingot::quantize {
namespace {

constexpr std::size_t kMxBlock = 32;
constexpr std::size_t kBytesPerNvBlock = kNvfp4Block / 2;

bool has_nonzero_code(const std::byte* codes, std::size_t n_bytes) {
  return std::any_of(codes, codes + n_bytes,
                     [](std::byte pair) { return (pair & std::byte{0x77}) != std::byte{0}; });
}

/// The E4M3 code under which codes keep their values: that of scale / global, if E4M3 has it and
/// the effective scale is the old one again. 0 otherwise.
std::uint8_t repacked_scale(float scale, float global, bool divides) {
  const float ratio = divides ? scale * global : scale / global;
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(ratio);
  if ((bits & 0x807FFFFFU) != 0 || ratio < 0x1p-9F || ratio > 0x1p8F) return 0;
  const std::uint8_t code = formats::e4m3_from_float(ratio);
  return nvfp4_effective_scale(code, global, divides) == scale ? code : std::uint8_t{0};
}

}  // namespace

float largest_mxfp4_scale(const CodedMatrix& in) {
  INGOT_CHECK(in.cols % 2 == 0 && in.block_cols % 2 == 0);
  float largest = 0;
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
    const float scale = in.scale(group);
    if (scale <= largest) return;
    const std::byte* codes = in.row(r) + begin / 2;
    if (has_nonzero_code(codes, (end - begin) / 2)) largest = scale;
  });
  return largest;
}

float repacked_global(float largest_scale, bool divides) {
  if (largest_scale == 0) return 1.0F;
  if (!divides) return largest_scale * 0x1p-8F;
  // 2^8 / 2^-120 and more would be infinite; the largest power of two serves as well, since block
  // scales then only become smaller.
  return std::min(0x1p8F / largest_scale, 0x1p127F);
}

std::uint64_t repack_mxfp4_as_nvfp4(const CodedMatrix& in, float global, bool divides,
                                    const EncodeOptions& options, const EncodeOutput& out) {
  INGOT_CHECK(in.block_rows == 1 && in.block_cols == kMxBlock && in.cols % kMxBlock == 0);
  INGOT_CHECK(in.first_col % kMxBlock == 0);
  const Scheme& nvfp4 = *find_scheme(formats::SchemeId::kNvfp4);
  std::uint64_t kept = 0;
  for_each_piece(in, [&](std::size_t r, std::size_t begin, std::size_t end, std::size_t group) {
    const float scale = in.scale(group);
    const std::byte* from = in.row(r) + begin / 2;
    std::byte* to = out.weight + r * out.weight_stride + begin / 2;
    std::byte* scales = out.scales + r * out.scale_stride + begin / kNvfp4Block;
    if (const std::uint8_t code = repacked_scale(scale, global, divides); code != 0) {
      std::memcpy(to, from, 2 * kBytesPerNvBlock);
      scales[0] = scales[1] = std::byte{code};
      kept += 2;
      return;
    }
    std::array<float, kMxBlock> values;
    decode(in.part(r, 1, begin, end - begin),
           {.data = values.data(), .rows = 1, .cols = kMxBlock, .stride = kMxBlock});
    nvfp4.encode(
        {.values = {.data = values.data(), .rows = 1, .cols = kMxBlock, .stride = kMxBlock},
         .block_rows = 1,
         .block_cols = kNvfp4Block,
         .global = global,
         .global_divides = divides,
         .options = options},
        {.weight = to,
         .weight_stride = kMxBlock / 2,
         .scales = scales,
         .scale_stride = kMxBlock / kNvfp4Block});
  });
  return kept;
}

}  // namespace ingot::quantize
