#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/prompt_rows.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// How likely a model finds one sequence: a document, or a window of a longer one.
struct SequenceLikelihood {
  std::uint64_t tokens = 0;
  double nll = 0;
};

/// How likely a model finds a text: each document by itself, token-weighted.
struct Likelihood {
  std::size_t documents = 0;  ///< sequences: documents, or windows of longer ones
  std::uint64_t tokens = 0;   ///< predicted ones: all but the first of each sequence
  double nll = 0;             ///< sum over them, natural logarithm
  std::vector<SequenceLikelihood> sequences = {};  ///< results of the sequences, in order
  [[nodiscard]] double perplexity() const;
};

/// One pass over the weights per batch of documents whose hidden states fit in memory.
Likelihood measure_likelihood(const formats::Checkpoint& model, std::span<const Prompt> documents,
                              const RunOptions& options);

/// The results of `--text`: of one model, or of both.
struct TextReport {
  std::optional<Likelihood> source;
  Likelihood output;
  std::size_t documents = 0;  ///< documents of the text; windows of the context split longer ones
};

/// Logits are made of at most so many rows at a time.
inline constexpr std::size_t kHeadRows = 256;

/// Receives the last main layer's states of the next documents, in their order: `hidden` are the
/// rows of `spans`.
using TakeHidden =
    std::function<void(inference::LayerStream& stream, const inference::Matrix& hidden,
                       std::span<const PromptSpan> spans)>;

/// Passes documents through all main layers, as many at a time as fit in memory, with the profile
/// of the output: one pass over the weights for each such batch. `take` holds up to `states` more
/// hidden states per row in addition to `hidden`. Throws kLimit, with the memory that would be
/// enough for every document.
void pass_documents(const formats::Checkpoint& model, std::span<const Prompt> documents,
                    const RunOptions& options, std::size_t states, const TakeHidden& take);

}  // namespace ingot::verify
