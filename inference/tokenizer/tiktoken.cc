#include "inference/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/words.h"
#include "formats/text/base64.h"
#include "inference/tokenizer/bpe.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/component.h"

namespace ingot::inference {

using formats::Json;

namespace {

/// Pattern by which a tokenizer class cuts texts (model reference, 10.3).
struct ClassPattern {
  std::string_view tokenizer_class, text;
};
constexpr std::array<ClassPattern, 1> kPatterns{{
    {"TikTokenTokenizer", R"([\p{Han}]+)"
                          R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                          R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
                          R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
                          R"(|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"},
}};
constexpr std::size_t kControlTokens = 256;
constexpr std::size_t kLongestLine = 4096;  // published files have lines below 200 bytes

[[noreturn]] void refuse_line(std::size_t line, std::string_view fault) {
  throw Error(ErrorCode::kCorrupt, "line {} {}", line, fault);
}

std::string token_bytes(std::string_view text, std::size_t line) {
  auto bytes = text.size() > kLongestLine ? std::nullopt : base64_bytes(text);
  if (!bytes) refuse_line(line, "does not begin with a token in base64");
  return *std::move(bytes);
}

Json vocabulary(std::string_view file) {
  Json vocab = Json::object();
  std::size_t n_lines = 0, n_tokens = 0;
  while (!file.empty()) {
    ++n_lines;
    const std::string_view line = file.substr(0, file.find('\n'));
    file.remove_prefix(std::min(file.size(), line.size() + 1));
    if (line.empty() || line == "\r") continue;
    const std::size_t space = line.find(' ');
    if (space == std::string_view::npos) refuse_line(n_lines, "is not a token and its rank");
    const auto rank =
        number_from<std::uint64_t>(without_white_space(line.substr(space), true, true));
    if (!rank) refuse_line(n_lines, "is without a rank");
    std::string token;
    append_byte_characters(token_bytes(line.substr(0, space), n_lines), token);
    if (!vocab.emplace(token, *rank).second) refuse_line(n_lines, "repeats a token");
    ++n_tokens;
  }
  for (const auto& [token, rank] : vocab.items()) {
    if (rank < n_tokens) continue;
    throw Error(ErrorCode::kUnsupported,
                "{} tokens, of which one has rank {}: ranks that leave ids out are not supported",
                n_tokens, rank.get<std::uint64_t>());
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_byte_characters(std::string(1, static_cast<char>(byte)), token);
    if (!vocab.contains(token)) throw Error(ErrorCode::kCorrupt, "has no token for byte {}", byte);
  }
  return vocab;
}

Json control_tokens(std::size_t first, const formats::JsonFields& config) {
  std::vector<Json> tokens(kControlTokens);
  for (std::size_t i = 0; i < kControlTokens; ++i) {
    tokens[i] = {{"id", first + i},
                 {"content", fmt::format("<|reserved_token_{}|>", first + i)},
                 {"special", true},
                 {"normalized", false}};
  }
  if (const auto named = config.optional_child("added_tokens_decoder")) {
    for (const auto& [key, entry] : config.get("added_tokens_decoder").items()) {
      const auto id = number_from<std::size_t>(key);
      if (!id || *id < first || *id - first >= kControlTokens + 2) {
        named->refuse(fmt::format("names token {}, which is none of the {} after {}",
                                  quote_text(key), kControlTokens, first));
      }
      // Releases name two more than a model has room for.
      if (*id - first >= kControlTokens) continue;
      const formats::JsonFields token(entry, "", named->path() + "." + key);
      tokens[*id - first]["content"] = token.text("content");
      tokens[*id - first]["special"] = token.boolean("special", true);
    }
  }
  return tokens;
}

}  // namespace

Json tiktoken_document(std::string_view ranks, const Json& config) {
  const formats::JsonFields fields(config, "", "tokenizer_config.json");
  const std::string tokenizer_class = fields.text("tokenizer_class", "");
  const auto* const pattern =
      std::ranges::find(kPatterns, tokenizer_class, &ClassPattern::tokenizer_class);
  if (pattern == kPatterns.end()) {
    throw Error(ErrorCode::kUnsupported,
                "tokenizer_config.json has tokenizer_class {}, whose pattern is not known "
                "(supported: {}; convert it to tokenizer.json; --tokens works without a tokenizer)",
                quote_text(tokenizer_class), kPatterns.front().tokenizer_class);
  }
  Json vocab = vocabulary(ranks);
  const std::size_t n_tokens = vocab.size();
  return {
      {"added_tokens", control_tokens(n_tokens, fields)},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", pattern->text}}}, {"behavior", "Isolated"}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model",
       {{"type", "BPE"},
        {"vocab", std::move(vocab)},
        {"ignore_merges", true},
        {"merges", Bpe::kAllMerges}}}};
}

}  // namespace ingot::inference
