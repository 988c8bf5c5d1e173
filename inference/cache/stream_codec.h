#pragma once

#include <cstddef>
#include <span>

#include "inference/cache/kv_cache.h"

namespace ingot::inference {

/// Sizes of one page of a stream, in bytes: the codes of its tokens, one after the other, and then
/// their scales, likewise.
struct PageForm {
  std::size_t code_bytes = 0;  ///< per token
  std::size_t groups = 0;      ///< scales per token; 0 for plain formats
  [[nodiscard]] std::size_t token_bytes() const { return code_bytes + groups * sizeof(float); }
  [[nodiscard]] std::size_t page_bytes() const { return KvCache::kPageTokens * token_bytes(); }
};
PageForm page_form(const CacheStream& stream);

/// Holds one token's values (width of the stream) at place `token` of a page.
void encode_token(const CacheStream& stream, std::byte* page, std::size_t token,
                  std::span<const float> values);

/// Values of tokens [first, first + n) of a page, row-major into `out`. A code times its scale is
/// rounded once to FP32.
void decode_tokens(const CacheStream& stream, const std::byte* page, std::size_t first,
                   std::size_t n, float* out);

}  // namespace ingot::inference
