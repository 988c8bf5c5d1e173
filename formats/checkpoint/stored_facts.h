#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// Questions that several layers ask about an opened checkpoint.

namespace ingot::formats {

// `tie_word_embeddings` in a checkpoint that stores a head. vLLM and transformers 5 compute with a
// head that is stored and differs from the embedding, whatever the config says; SGLang and
// transformers 4 take the embedding.

/// A stored head, and the embedding that config.json calls the head.
struct TiedHead {
  const LogicalTensor* head = nullptr;
  const LogicalTensor* embedding = nullptr;
};

/// The head and embedding of a source whose config.json says `tie_word_embeddings`, of the text
/// model or of the whole; nullopt where it does not, or where one of them is not stored. Tensors
/// outside of a grammar are known by the usual names.
std::optional<TiedHead> tied_head(const TensorSource& source);

/// True if the head is another matrix than the embedding: in another encoding, or with other bytes
/// among the first `most_bytes` of each part. Reads both to the first difference. False where the
/// data of one are not here. Asks the StopScope at each piece that is read.
bool is_apart(const Checkpoint& source, const TiedHead& tied,
              std::uint64_t most_bytes = UINT64_MAX);

/// True if the source has a head that is_apart() from its embedding.
bool has_head_apart(const Checkpoint& source);

/// Says of the head that it is no embedding, wherever `document` says that it is; `config` is that
/// of the document, or of one that it was made of.
void untie_head(const ModelConfig& config, Json& document);

// Plain checkpoints, and those that training programs saved in more bits than config.json says.

/// The plain scheme that `dtype` of config.json names, bf16 or f16, where linear weights are stored
/// in more bits; else nullopt.
std::optional<SchemeId> narrower_dtype(const TensorSource& source);

/// True if a tensor is plain and has more bits than `to`, and in releases of its family it has not
/// (TensorRule::synth_dtype: routers and their biases often have more bits). False for scales of
/// caches, and for tensors that no row has.
bool is_saved_wider(const LogicalTensor& tensor, SchemeId to);

/// True if no tensor is quantized, in whatever form its codes are viewed.
bool has_plain_only(const TensorSource& source);

/// The words of a checkpoint's config.json or description file about a quantized cache of keys and
/// values; empty if there are none.
std::string cache_words(const Checkpoint& checkpoint);

}  // namespace ingot::formats
