#include "inference/tokenizer/text_limit.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::inference {

void check_text_size(std::size_t n_bytes) {
  if (n_bytes <= kMaxTextBytes) return;
  throw Error(ErrorCode::kLimit,
              fmt::format("a text of {} bytes is too long for the tokenizer (at most {}, after its "
                          "normalizer and pre-tokenizer)",
                          n_bytes, kMaxTextBytes));
}

}  // namespace ingot::inference
