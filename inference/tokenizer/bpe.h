#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "inference/tokenizer/component.h"
#include "inference/tokenizer/text_work.h"

namespace ingot::inference {

/// The model's tokens, without the added ones: text to id and back.
class Vocabulary {
 public:
  /// Reads `vocab` of the model: an object of ids by text, or for Unigram a list of [text, score],
  /// whose places are ids. Throws kCorrupt or kLimit for an id that is no whole number, too large
  /// or given twice.
  static Vocabulary parse(const Component& model);

  [[nodiscard]] std::optional<std::int32_t> find(std::string_view text) const;
  /// Returns the text of a token; null for ids that no token has.
  [[nodiscard]] const std::string* text(std::int32_t id) const;
  /// The highest id + 1.
  [[nodiscard]] std::size_t size() const { return texts_.size(); }
  /// Appends the ids of `<0xHH>` for each byte, if all of them are tokens; else nothing, and false.
  bool append_bytes(std::string_view bytes, std::vector<std::int32_t>& ids) const;

 private:
  struct Hash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>()(text);
    }
  };
  void add(std::string_view text, const formats::Json& id, const Component& model);

  std::unordered_map<std::string, std::int32_t, Hash, std::equal_to<>> ids_;
  std::vector<const std::string*> texts_;  // pointers to the keys of ids_, which never move
};

/// The id in a field of the file; throws kLimit when it is too large, kCorrupt when it is no id.
std::int32_t token_id(const formats::Json& value, const Component& component,
                      std::string_view token);

/// Memory for encoding in addition to the model; one per thread, reused from piece to piece.
struct BpeScratch {
  struct Symbol {
    std::int32_t id;
    std::int32_t previous, next;  // positions, -1 at the ends
  };
  std::vector<Symbol> symbols;
  std::vector<std::uint64_t> candidates;  // a heap of rank << 32 | position
};

/// Byte-pair encoding of one piece: starts from the characters and, as long as some adjacent pair
/// is in the list of merges, merges the pair that comes first there (the leftmost of equals).
class Bpe {
 public:
  /// Word in place of a list of merges: any two tokens that together are one make it, the lowest id
  /// first, as in tiktoken.
  static constexpr const char* kAllMerges = "all";

  /// Reads the object `model` of tokenizer.json; `vocabulary` must outlive this. Merges are "a b"
  /// or ["a", "b"]; of equal ones the last counts, as in Hugging Face's tokenizers. Merges whose
  /// parts or whole are no tokens are kCorrupt; a model that is no BPE, or drops merges at random,
  /// is kUnsupported.
  static Bpe parse(const Component& model, const Vocabulary& vocabulary);

  /// Appends the ids of `piece`, which is valid UTF-8. A character that is no token becomes its
  /// bytes (`byte_fallback`), or the unknown token, or is left out. Time: n log n in characters.
  void encode(std::string_view piece, BpeScratch& scratch, TextWork& work,
              std::vector<std::int32_t>& ids) const;

 private:
  struct Merge {
    std::uint32_t rank;
    std::int32_t id;
  };
  explicit Bpe(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
  void parse_merges(const Component& model);
  void add_merge(const Component& model, std::string_view left, std::string_view right);
  void start_symbols(std::string_view piece, BpeScratch& scratch) const;
  [[nodiscard]] std::int32_t unknown_id(std::string_view character) const;
  [[nodiscard]] std::optional<Merge> merge_of(std::int32_t left, std::int32_t right) const;
  void merge_symbols(BpeScratch& scratch, TextWork& work) const;

  const Vocabulary* vocabulary_;
  std::unordered_map<std::uint64_t, Merge> merges_;
  std::uint32_t n_ranks_ = 0;
  std::optional<std::string> unknown_token_;
  std::string prefix_;  // prefix of characters that do not start the piece
  std::string suffix_;  // suffix of the character that ends the piece
  bool fuse_unknown_ = false;
  bool byte_fallback_ = false;
  bool ignore_merges_ = false;
  bool merges_all_ = false;
};

}  // namespace ingot::inference
