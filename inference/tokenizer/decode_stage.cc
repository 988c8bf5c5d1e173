#include "inference/tokenizer/decode_stage.h"

namespace ingot::inference {

void WholeTokenStage::push(std::string_view chunk, bool ends_token) {
  token_ += chunk;
  if (!ends_token) return;
  on_token(token_);
  token_.clear();
}

}  // namespace ingot::inference
