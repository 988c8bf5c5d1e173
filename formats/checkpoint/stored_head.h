#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

// `tie_word_embeddings` in a checkpoint that stores a head. vLLM and transformers 5 compute with a
// head that is stored and differs from the embedding, whatever the config says; SGLang and
// transformers 4 take the embedding.

namespace ingot::formats {

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
/// data of one are not here. `check_stop` is called at each piece that is read, and may throw.
bool is_apart(const Checkpoint& source, const TiedHead& tied,
              const std::function<void()>& check_stop = {}, std::uint64_t most_bytes = UINT64_MAX);

/// True if the source has a head that is_apart() from its embedding.
bool has_head_apart(const Checkpoint& source, const std::function<void()>& check_stop = {});

/// Says of the head that it is no embedding, wherever `document` says that it is; `config` is that
/// of the document, or of one that it was made of.
void untie_head(const ModelConfig& config, Json& document);

/// Gives the head of a tied model, and the parts next to it, the embedding's name, under which
/// loaders look for the table: some tools save it only as the head. Returns the name that the head
/// had, or an empty one where the model is not tied, has an embedding or no head. `config` has its
/// prefix.
std::string name_tied_table(const Family& family, const ModelConfig& config,
                            std::vector<StoredTensor>& stored);

}  // namespace ingot::formats
