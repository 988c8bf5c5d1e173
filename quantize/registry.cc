#include <algorithm>
#include <array>

#include "formats/base/error.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/fp8_cast.h"
#include "quantize/kernels/plain_cast.h"
#include "quantize/schemes.h"

namespace ingot::quantize {
namespace {

using formats::SchemeId;

// A new kind of scheme is one file, one declaration in schemes.h and one line here.
constexpr std::array kFiles{&kPlainSchemes, &kFp8Schemes,   &kInt8Schemes,
                            &kInt4Schemes,  &kNvfp4Schemes, &kMxSchemes};

template <WordCast Cast>
DecodeFaults transcode_words(const CodedMatrix& in, std::span<std::byte> out) {
  INGOT_CHECK(in.rows <= 1 ||
              in.row_bytes * 8 == in.cols * formats::scheme_facts(in.scheme).code_bits);
  INGOT_CHECK(in.cols == 0 || in.rows <= out.size() / sizeof(std::uint16_t) / in.cols);
  cast_words(Cast, in.codes, in.rows * in.cols, out.data());
  return {};
}

struct FusedPath {
  SchemeId from, to;
  Transcode run;
};

constexpr std::array kFusedPaths{
    FusedPath{SchemeId::kFp8Block, SchemeId::kBf16, cast_fp8_block_to_bf16},
    FusedPath{SchemeId::kF32, SchemeId::kBf16, transcode_words<WordCast::kF32ToBf16>},
    FusedPath{SchemeId::kF16, SchemeId::kBf16, transcode_words<WordCast::kF16ToBf16>},
};

}  // namespace

const Scheme* find_scheme(SchemeId id) {
  for (const std::span<const Scheme>* rows : kFiles) {
    for (const Scheme& scheme : *rows) {
      if (scheme.id == id) return &scheme;
    }
  }
  return nullptr;
}

float half_top_step(SchemeId id) {
  return formats::is_coded(id) ? code_facts(formats::scheme_facts(id).code).half_top_step() : 0;
}

bool can_search(const Scheme& scheme, const EncodeOptions& options) {
  return !scheme.searches.empty() &&
         !(scheme.takes_fp8_grid && options.fp8_grid == Fp8Grid::kUe8m0);
}

EncodeOptions options_for(const Scheme& scheme, const EncodeOptions& options) {
  EncodeOptions taken = options;
  if (std::ranges::find(scheme.searches, options.search) == scheme.searches.end())
    taken.search = ScaleSearch::kMse;
  return taken;
}

Transcode find_transcode(SchemeId from, SchemeId to) {
  for (const FusedPath& path : kFusedPaths) {
    if (path.from == from && path.to == to) return path.run;
  }
  return nullptr;
}

bool can_convert(SchemeId from, SchemeId to) {
  return from != SchemeId::kRaw && find_scheme(to) != nullptr;
}

}  // namespace ingot::quantize
