#include "inference/cache/stream_codec.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "quantize/scheme.h"

namespace ingot::inference {
namespace {

using formats::SchemeId;

bool is_quantized(const CacheStream& stream) {
  return stream.format == KvFormat::kFp8 || stream.format == KvFormat::kInt8;
}

std::size_t group_of(const CacheStream& stream) {
  return stream.group == 0 ? stream.width : std::min(stream.group, stream.width);
}

std::size_t code_width(KvFormat format) {
  switch (format) {
    case KvFormat::kF32:
      return 4;
    case KvFormat::kBf16:
      return 2;
    case KvFormat::kFp8:
    case KvFormat::kInt8:
      break;
  }
  return 1;
}

// Scheme of which a page of tokens is a matrix: one block to a group of a token.
SchemeId scheme_of(KvFormat format) {
  switch (format) {
    case KvFormat::kBf16:
      return SchemeId::kBf16;
    case KvFormat::kFp8:
      return SchemeId::kFp8Block;
    case KvFormat::kInt8:
      return SchemeId::kInt8Block;
    case KvFormat::kF32:
      break;
  }
  return SchemeId::kF32;
}

std::size_t scales_at(const PageForm& form, std::size_t token) {
  return KvCache::kPageTokens * form.code_bytes + token * form.groups * sizeof(float);
}

}  // namespace

PageForm page_form(const CacheStream& stream) {
  INGOT_CHECK(stream.width > 0);
  PageForm form{.code_bytes = stream.width * code_width(stream.format)};
  if (is_quantized(stream)) form.groups = ceil_div(stream.width, group_of(stream));
  return form;
}

void encode_token(const CacheStream& stream, std::byte* page, std::size_t token,
                  std::span<const float> values) {
  INGOT_CHECK(values.size() == stream.width && token < KvCache::kPageTokens);
  const PageForm form = page_form(stream);
  std::byte* codes = page + token * form.code_bytes;
  if (stream.format == KvFormat::kF32) {
    std::memcpy(codes, values.data(), form.code_bytes);
    return;
  }
  if (stream.format == KvFormat::kBf16) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const std::uint16_t word = formats::bf16_from_float(values[i]);
      std::memcpy(codes + 2 * i, &word, sizeof word);
    }
    return;
  }
  const bool is_fp8 = stream.format == KvFormat::kFp8;
  const QuantizedRows rows = quantize_activations(
      {.data = values.data(), .rows = 1, .cols = values.size(), .stride = values.size()},
      {.code = is_fp8 ? formats::CodeKind::kE4m3 : formats::CodeKind::kInt8,
       .group = group_of(stream),
       .power_of_two = is_fp8 && stream.power_of_two});
  INGOT_CHECK(rows.codes.size() == form.code_bytes && rows.scales.size() == form.groups);
  std::memcpy(codes, rows.codes.data(), form.code_bytes);
  std::memcpy(page + scales_at(form, token), rows.scales.data(), form.groups * sizeof(float));
}

void decode_tokens(const CacheStream& stream, const std::byte* page, std::size_t first,
                   std::size_t n, float* out) {
  INGOT_CHECK(first <= KvCache::kPageTokens && n <= KvCache::kPageTokens - first);
  if (n == 0) return;
  const PageForm form = page_form(stream);
  const std::byte* codes = page + first * form.code_bytes;
  if (stream.format == KvFormat::kF32) {
    std::memcpy(out, codes, n * form.code_bytes);
    return;
  }
  quantize::EncodedRows rows{
      .weight = codes, .rows = n, .cols = stream.width, .rows_per_matrix = n};
  if (is_quantized(stream)) {
    const std::byte* scales = page + scales_at(form, first);
    rows.scales = {reinterpret_cast<const float*>(scales), n * form.groups};
    rows.scale_cols = form.groups;
    rows.block_rows = 1;
    rows.block_cols = group_of(stream);
  }
  quantize::find_scheme(scheme_of(stream.format))
      ->decode(rows, {.data = out, .rows = n, .cols = stream.width, .stride = stream.width});
}

}  // namespace ingot::inference
