#include "inference/tokenizer/stream_decoder.h"

#include <optional>
#include <string_view>

namespace ingot::inference {

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), chain_(tokenizer.decoder()) {}

std::string StreamDecoder::push(std::int32_t id) {
  const std::optional<std::string_view> token = tokenizer_->decoded_token(id, skip_special_);
  return token ? chain_.push(*token) : std::string();
}

std::string StreamDecoder::finish() {
  return chain_.finish();
}

}  // namespace ingot::inference
