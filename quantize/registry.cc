#include <algorithm>
#include <array>
#include <utility>

#include "formats/base/error.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

// A new scheme is one file, one declaration in schemes.h and one line here.
constexpr std::array kSchemes{
    &kBf16Scheme,
    &kF16Scheme,
    &kF32Scheme,
    &kFp8BlockScheme,
};

struct FusedPath {
  SchemeId from, to;
  Transcode run;
};

constexpr std::array kFusedPaths{
    FusedPath{SchemeId::kFp8Block, SchemeId::kBf16, cast_fp8_block_to_bf16},
    FusedPath{SchemeId::kF32, SchemeId::kBf16, transcode_f32_to_bf16},
    FusedPath{SchemeId::kF16, SchemeId::kBf16, transcode_f16_to_bf16},
};

constexpr std::size_t kBufferFloats = 4096;

/// Decodes and encodes by whole rows, or by pieces of one row where a row is longer than the
/// buffer.
template <const Scheme* From, const Scheme* To>
DecodeFaults through_floats(const EncodedRows& in, std::span<std::byte> out) {
  DecodeFaults faults;
  if (in.rows == 0 || in.cols == 0) return faults;
  INGOT_CHECK(in.rows <= out.size() / To->element_bytes / in.cols);
  std::array<float, kBufferFloats> buffer;
  const std::size_t row_step = std::max<std::size_t>(kBufferFloats / in.cols, 1);
  for (std::size_t r = 0; r < in.rows; r += row_step) {
    for (std::size_t c = 0; c < in.cols; c += kBufferFloats) {
      const std::size_t position = r * in.cols + c;
      EncodedRows piece = in;
      piece.weight += position * From->element_bytes;
      piece.rows = std::min(row_step, in.rows - r);
      piece.cols = std::min(kBufferFloats, in.cols - c);
      piece.first_row += r;
      piece.first_col += c;
      const DecodeFaults here = From->decode(
          piece,
          {.data = buffer.data(), .rows = piece.rows, .cols = piece.cols, .stride = piece.cols});
      if (here.nan_codes != 0 && faults.nan_codes == 0)
        faults.first_nan = position + here.first_nan;
      faults.nan_codes += here.nan_codes;
      const std::size_t n_bytes = piece.rows * piece.cols * To->element_bytes;
      To->encode(
          {.data = buffer.data(), .rows = piece.rows, .cols = piece.cols, .stride = piece.cols},
          out.subspan(position * To->element_bytes, n_bytes));
    }
  }
  return faults;
}

template <std::size_t... Pair>
constexpr std::array<Transcode, sizeof...(Pair)> make_generic_paths(std::index_sequence<Pair...>) {
  return {through_floats<kSchemes[Pair / kSchemes.size()], kSchemes[Pair % kSchemes.size()]>...};
}

/// Indexed by place in kSchemes of the source, times their number, plus that of the target.
constexpr auto kGenericPaths =
    make_generic_paths(std::make_index_sequence<kSchemes.size() * kSchemes.size()>());

std::size_t place_of(SchemeId id) {
  const auto* found = std::find_if(kSchemes.begin(), kSchemes.end(),
                                   [id](const Scheme* scheme) { return scheme->id == id; });
  return static_cast<std::size_t>(found - kSchemes.begin());
}

}  // namespace

const Scheme* find_scheme(formats::SchemeId id) {
  const std::size_t place = place_of(id);
  return place < kSchemes.size() ? kSchemes[place] : nullptr;
}

Transcode find_transcode(formats::SchemeId from, formats::SchemeId to) {
  for (const FusedPath& path : kFusedPaths) {
    if (path.from == from && path.to == to) return path.run;
  }
  const Scheme* source = find_scheme(from);
  const Scheme* target = find_scheme(to);
  if (source == nullptr || source->decode == nullptr) return nullptr;
  if (target == nullptr || target->encode == nullptr) return nullptr;
  return kGenericPaths[place_of(from) * kSchemes.size() + place_of(to)];
}

}  // namespace ingot::quantize
