#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/matrix.h"
#include "inference/base/profile.h"
#include "inference/model/layer_stream.h"
#include "verify/outputs/interval.h"
#include "verify/outputs/prompt_rows.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// How likely a model finds one sequence: a document, or a window of a longer one.
struct SequenceLikelihood {
  std::uint64_t tokens = 0;
  double nll = 0;
  double kl = 0;             ///< sum of KL(source || this model) over the same tokens, of an output
  std::size_t document = 0;  ///< index of the document that it is from
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

/// Passes both models through the same batches of documents, one after the other, and compares
/// their logits at every token that is predicted. Throws as pass_documents() does, and kMismatch if
/// the two are not of one shape. `TextReport::documents` is left to the caller.
TextReport compare_text(const formats::Checkpoint& source, const formats::Checkpoint& output,
                        std::span<const Prompt> documents, const RunOptions& options);

/// A mean over the predicted tokens of a text.
struct TextFigure {
  double mean = 0;
  /// bootstrap_interval() over the documents; nullopt: there is only one.
  std::optional<Interval> interval;
};
/// -ln(probability) of the text's tokens.
TextFigure nll_of(const Likelihood& model);
/// ln(perplexity of the output / of the source); with a source.
TextFigure log_ratio_of(const TextReport& text);
/// KL(source || output); with a source.
TextFigure kl_of(const TextReport& text);

/// Logits are made of at most so many rows at a time.
inline constexpr std::size_t kHeadRows = 256;

/// A model that documents pass through, and its arithmetic.
struct PassingModel {
  const formats::Checkpoint& model;
  inference::Profile profile = inference::Profile::kNative;
};

/// A model that a batch of documents has passed through: `hidden` are the last main layer's states.
struct PassedModel {
  PassedModel(const formats::Checkpoint& model, const inference::LayerStreamOptions& options)
      : stream(model, options) {}
  inference::LayerStream stream;
  inference::Matrix hidden;
};

/// Receives the next documents, in their order: the rows of each model's states are those of
/// `spans`.
using TakeHidden =
    std::function<void(std::deque<PassedModel>& models, std::span<const PromptSpan> spans)>;

/// Passes documents through all main layers of each model, as many at a time as fit in memory: one
/// pass over the weights of each for each such batch. `take` holds up to `states` more hidden
/// states per row and model. Throws kLimit, with the memory that would be enough for every
/// document.
void pass_documents(std::span<const PassingModel> models, std::span<const Prompt> documents,
                    const RunOptions& options, std::size_t states, const TakeHidden& take);

}  // namespace ingot::verify
