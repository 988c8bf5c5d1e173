#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/prompt_rows.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

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
