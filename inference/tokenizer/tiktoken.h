#pragma once

#include <string_view>

#include "formats/json/json.h"

namespace ingot::inference {

/// The tokenizer.json that does the same as Kimi's tokenization_kimi.py with `tiktoken.model`,
/// whose lines are `base64(bytes) rank`, and the tokenizer_config.json next to it: ranks are ids,
/// any two tokens that are one together may be merged, the lowest rank first. The 256 ids after
/// them are control tokens, named by `added_tokens_decoder`, else `<|reserved_token_ID|>`. Throws
/// kCorrupt for another file, naming the line; kUnsupported for ranks that leave ids out and for a
/// `tokenizer_class` whose pattern is not known. Not done: Kimi's cut of runs of more than 25,000
/// characters without white space, or of nothing else.
formats::Json tiktoken_document(std::string_view ranks, const formats::Json& config);

}  // namespace ingot::inference
