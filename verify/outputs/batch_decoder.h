#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"

namespace ingot::verify {

/// The format in which a profile caches keys and values.
inference::KvFormat cache_format(inference::Profile profile);

/// A model that answers prompts side by side, shows its logits, and is told which tokens follow.
class BatchDecoder {
 public:
  /// `most[i]` tokens are the most that prompt i and its answer have together. `source`, `prompts`
  /// and `most` must outlive this. Throws what Model::open throws.
  BatchDecoder(const formats::Checkpoint& source, const inference::ModelOptions& options,
               std::span<const std::vector<std::int32_t>> prompts,
               std::span<const std::size_t> most);

  /// Reads all prompts. Logits [prompts, vocab] of the first token of every answer.
  inference::Matrix begin();

  struct Continuation {
    std::size_t prompt = 0;
    std::int32_t token = 0;
  };
  /// Logits of the tokens after these, in this order. A prompt comes at most once.
  inference::Matrix step(std::span<const Continuation> continuations);

 private:
  // Rows of the next step of reading prompts, and the prompts that it reads to the end.
  std::vector<std::size_t> next_rows(std::vector<inference::Row>& rows);

  inference::OneRank comm_;
  inference::Model model_;
  std::span<const std::vector<std::int32_t>> prompts_;
  inference::ModelCache cache_;
  std::vector<inference::SequenceId> sequences_;
  std::vector<std::size_t> fed_;
};

}  // namespace ingot::verify
