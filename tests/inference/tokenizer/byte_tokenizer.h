#pragma once

#include <string>

#include "formats/json/json.h"
#include "inference/tokenizer/characters.h"

namespace ingot::testing {

/// The document of a byte-level tokenizer without merges: ids 0 to 255 are the bytes.
inline formats::Json byte_tokenizer_json() {
  formats::Json vocab = formats::Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string character;
    inference::append_byte_characters(std::string(1, static_cast<char>(byte)), character);
    vocab[character] = byte;
  }
  return {
      {"version", "1.0"},
      {"added_tokens", formats::Json::array()},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", formats::Json::array()}}}};
}

/// An entry of added_tokens.
inline formats::Json added_token(int id, const std::string& content, bool special = false) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace ingot::testing
