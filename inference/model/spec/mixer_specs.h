#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "inference/model/spec/attention_specs.h"

namespace ingot::inference {

/// Tokens that are joined into entries of a compressed cache: every `ratio` of them make one.
struct CompressorSpec {
  std::size_t ratio = 0;
  /// Each entry is of two windows: what tokens give to the next entry, and what to their own. Else
  /// of one.
  bool overlap = false;
  bool operator==(const CompressorSpec&) const = default;
};

/// Attention of one key head, whose keys are its values, over the last tokens and over compressed
/// entries of those before. Source: DeepSeek-V4's paper, 2.3, and transformers 5.23.
struct CompressedSpec {
  std::size_t heads = 0, head_dim = 0, rope_dim = 0, q_lora = 0;
  /// Groups of the output projection, and the rank of each.
  std::size_t out_groups = 1, out_lora = 0;
  std::size_t window = 0;  ///< tokens that a row sees as they are, its own too
  std::optional<CompressorSpec> compressor;
  /// How many entries a row sees, chosen by an indexer; 0: all.
  std::size_t topk = 0, index_heads = 0, index_head_dim = 0;
  RopeSpec rope;  ///< rotation of the last values of a head
  bool operator==(const CompressedSpec&) const = default;
};

/// Embeddings of the n-grams that end with a token, added to the streams of a layer (NgramLookup).
struct NgramSpec {
  std::vector<std::uint64_t> sizes, multipliers;  ///< numbers as in formats::NgramTable
  std::uint64_t rows = 0;                         ///< rows of the table
  std::size_t parts = 0;        ///< tensors that hold equal shares of the table's rows
  std::size_t width = 0;        ///< values of a row
  std::uint64_t separator = 0;  ///< the token behind which a text begins
  /// Sizes of the convolution over what is added, whose tokens are as far apart as the longest
  /// n-gram is long, and the streams' values.
  std::size_t kernel = 0, channels = 0;
  bool operator==(const NgramSpec&) const = default;
};

/// Shares of a mixer's state, in F32 values and in their order.
struct CompressedState {
  std::size_t keys = 0;     ///< keys of the last window - 1 tokens, at least one
  std::size_t windows = 0;  ///< unfinished windows of the compressor
  std::size_t index_windows = 0;
};
CompressedState state_of(const CompressedSpec& spec);
/// Returns the values of a compressor's window, for entries of `width` values: values and logits of
/// the tokens that its next entry may be made of.
std::size_t window_values(const CompressorSpec& spec, std::size_t width);

/// The last inputs of the convolution, and the last tokens.
struct NgramState {
  std::size_t inputs = 0, tokens = 0;
};
NgramState state_of(const NgramSpec& spec);

}  // namespace ingot::inference
