#pragma once

#include <cstdint>
#include <string>

#include "inference/tokenizer/decoder.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::inference {

/// Decodes id by id. What the pushes and the finish return, one after the other, is what
/// Tokenizer::decode returns for all ids at once, and each is valid UTF-8: a character whose bytes
/// come in several tokens appears with the last of them.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this, and stay where it is.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  std::string push(std::int32_t id);
  /// What is still held back. Nothing may be pushed afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  DecodeChain chain_;
};

}  // namespace ingot::inference
