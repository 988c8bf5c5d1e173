#include <cstddef>
#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/tokenizer.h"
#include "tests/fuzz/target.h"

namespace ingot::fuzz {
namespace {

using inference::StreamDecoder;
using inference::Tokenizer;

// A little of everything that components look for.
constexpr std::string_view kText =
    "a  b\tI'll \xC3\xA9 e\xCC\x81 12345 <s>\xE2\x96\x81\xE4\xB8\xAD\xE6\x96\x87\r\n\n(x) \xF0\x9F"
    "\x98\x80 ";

// The file may make a text too long, or a search, or lack its unknown token.
std::optional<std::vector<std::int32_t>> encoded(const Tokenizer& tokenizer) {
  try {
    return tokenizer.encode(kText, true);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kLimit || error.code() == ErrorCode::kCorrupt)
      return std::nullopt;
    throw std::logic_error(error.what());
  }
}

void check_decoding(const Tokenizer& tokenizer, const std::vector<std::int32_t>& ids) {
  for (const bool skip_special : {false, true}) {
    std::string streamed;
    try {
      StreamDecoder stream(tokenizer, skip_special);
      for (const std::int32_t id : ids) {
        const std::string part = stream.push(id);
        if (inference::find_invalid_utf8(part)) throw std::logic_error("decoded to invalid UTF-8");
        streamed += part;
      }
      streamed += stream.finish();
    } catch (const Error& error) {
      if (error.code() == ErrorCode::kLimit) continue;
      throw std::logic_error(error.what());
    }
    if (streamed != tokenizer.decode(ids, skip_special))
      throw std::logic_error("streamed and decoded texts differ");
  }
}

}  // namespace

bool accepts(std::span<const std::byte> input) {
  const std::string_view text(reinterpret_cast<const char*>(input.data()), input.size());
  std::optional<Tokenizer> tokenizer;
  try {
    tokenizer = Tokenizer::parse(text, "input");
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kInternal) throw std::logic_error(error.what());
    return false;
  }
  std::vector<std::int32_t> ids = encoded(*tokenizer).value_or(std::vector<std::int32_t>());
  for (const std::int32_t id : ids) {
    if (id < 0 || static_cast<std::size_t>(id) >= tokenizer->size())
      throw std::logic_error("an id beyond the vocabulary");
  }
  for (std::int32_t id = -1; id < 100; ++id) ids.push_back(id);
  check_decoding(*tokenizer, ids);
  return true;
}

}  // namespace ingot::fuzz
