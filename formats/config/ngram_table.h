#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "formats/json/json_fwd.h"

namespace ingot::formats {

/// The embeddings of n-grams of a layer, as Qwen's configs mean them: n-grams of every length from
/// 2 on have some heads, each of which hashes them to rows of its own. Source: transformers 5.24,
/// qwen4_exp.
struct NgramTable {
  /// Rows of each head, those of shorter n-grams first: primes from `ngram_vocab_size_base` on, of
  /// which no two tables of a model have the same.
  std::vector<std::uint64_t> sizes;
  std::uint64_t rows = 0;  ///< rows of all heads, with those that fill up
  /// An odd multiplier for a token and one for each token before it; a token times its multiplier
  /// is below 2^63.
  std::vector<std::uint64_t> multipliers;
};

/// The table of a layer, counted from 0, from the keys of a text model: nullopt where
/// `ple_layer_ids` does not list it, or a number is missing or 0. Throws kCorrupt for values of
/// another kind or out of range, kLimit where the model has more than 2^10 heads.
std::optional<NgramTable> ngram_table(const Json& keys, std::uint64_t layer);

}  // namespace ingot::formats
