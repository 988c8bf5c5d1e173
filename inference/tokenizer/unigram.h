#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "inference/tokenizer/bpe.h"
#include "inference/tokenizer/component.h"

namespace ingot::inference {

/// The unigram model of SentencePiece, as Hugging Face's tokenizers compute it: of all ways to cut
/// a piece into tokens the one with the largest sum of scores, added from left to right in FP64; of
/// equal ones the one whose last token starts first, and so on to the left. A character that is no
/// token counts as the unknown token, with the lowest score of the vocabulary less 10.
class Unigram {
 public:
  /// Reads the object `model` of tokenizer.json; `vocabulary` must outlive this. An `unk_id` that
  /// is no token is kCorrupt, a token of more than 512 bytes kLimit.
  static Unigram parse(const Component& model, const Vocabulary& vocabulary);

  /// Appends the ids of `piece`, which is valid UTF-8. A run of unknown characters becomes its
  /// bytes (`byte_fallback`, where all are tokens) or one unknown token; throws kCorrupt where
  /// there is none.
  void encode(std::string_view piece, TextWork& work, std::vector<std::int32_t>& ids) const;

 private:
  explicit Unigram(const Vocabulary& vocabulary) : vocabulary_(&vocabulary) {}
  void append(std::string_view token, std::vector<std::int32_t>& ids) const;

  const Vocabulary* vocabulary_;
  std::vector<double> scores_;  // scores, by id
  std::size_t longest_ = 0;     // bytes
  double unknown_score_ = 0;
  std::optional<std::int32_t> unknown_;
  bool byte_fallback_ = false;
};

}  // namespace ingot::inference
