#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "inference/tokenizer/decoder.h"

namespace ingot::inference {

/// A tokenizer, by byte pairs or unigrams, as tokenizer.json describes it: text to ids and back, as
/// Hugging Face's tokenizers do it. Immutable: all of it may run on many threads at once, and
/// copies share it.
class Tokenizer {
 public:
  /// Throws kCorrupt or kLimit for violations of the format, kUnsupported for components that this
  /// program does not have, naming the component and its type. `where` names the file in errors.
  static Tokenizer parse(std::string_view json, std::string_view where);

  /// DIRECTORY/tokenizer.json, else tiktoken.model with its tokenizer_config.json
  /// (tiktoken_document). Throws kNotFound without either; kUnsupported when there is a tokenizer
  /// in another format instead (SentencePiece).
  static Tokenizer open(const std::filesystem::path& directory);
  /// True if the directory has one of the two files.
  static bool is_in(const std::filesystem::path& directory);

  /// Encodes a text as ids. Added tokens are recognised at any place, special or not;
  /// `add_special_tokens` puts those around it that the file's post-processor has. Text that is not
  /// UTF-8 is kInvalidArgument with the byte where it starts, more than 64 MiB of it kLimit, and so
  /// is work beyond TextWork. kInterrupted in a StopScope that says so.
  [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text,
                                                 bool add_special_tokens) const;

  /// Decodes ids as text, with U+FFFD where their bytes are not UTF-8. `skip_special` leaves
  /// special tokens out. Ids outside the vocabulary decode to an empty text.
  [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const;

  /// The id of a token of the vocabulary or an added one, spelled as in the file.
  [[nodiscard]] std::optional<std::int32_t> id_of(std::string_view token) const;
  /// The token as it is spelled in the file; empty for ids outside the vocabulary.
  [[nodiscard]] std::string_view token(std::int32_t id) const;
  /// The highest id + 1. A model's vocabulary may be larger.
  [[nodiscard]] std::size_t size() const;

 private:
  friend class StreamDecoder;
  struct Parts;
  explicit Tokenizer(std::shared_ptr<const Parts> parts) : parts_(std::move(parts)) {}
  static Tokenizer open_tiktoken(const std::filesystem::path& directory);
  /// The text of an id to be decoded; nullopt for ids left out.
  [[nodiscard]] std::optional<std::string_view> decoded_token(std::int32_t id,
                                                              bool skip_special) const;

  std::shared_ptr<const Parts> parts_;
};

/// Decodes id by id. The results of the pushes and the finish, one after the other, make up that of
/// Tokenizer::decode for all ids at once, and each is valid UTF-8: a character whose bytes come in
/// several tokens appears with the last of them.
class StreamDecoder {
 public:
  /// `tokenizer` must outlive this, and stay where it is.
  StreamDecoder(const Tokenizer& tokenizer, bool skip_special);

  std::string push(std::int32_t id);
  /// Returns the text that is still held back. No token may be pushed afterwards.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  DecodeChain chain_;
};

}  // namespace ingot::inference
