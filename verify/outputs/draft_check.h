#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "verify/outputs/interval.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {

/// A text on which drafts are measured: tokens from `first` on count, at least 1.
struct DraftText {
  Prompt text;
  std::size_t first = 1;
};

/// Tokens that are measured where the models' own prompts are answered.
inline constexpr std::size_t kDraftTokens = 1000;

/// True if the checkpoint has a layer for multi-token prediction, not only its config.
bool has_mtp_layer(const formats::Checkpoint& model);

/// The source's greedy answers to prompts, in source_profile, of equal lengths that are together at
/// least kDraftTokens, or as long as the model's context lets them be. They do not end where the
/// model ends them: few answers are as long, and the tokens after the end are the model's own, too.
std::vector<DraftText> answered_text(const formats::Checkpoint& source,
                                     std::span<const Prompt> prompts, const RunOptions& options);
/// Texts of which all tokens count.
std::vector<DraftText> whole_text(std::span<const Prompt> documents);

/// For every text and every token of it that counts, in order: whether the MTP layer, given the
/// state before that token, drafts for the token after it the one that the model itself finds
/// likeliest. In output_profile. All tokens are those of the text, so that two models are compared
/// on the same ones.
using DraftOutcomes = std::vector<std::vector<bool>>;
DraftOutcomes measure_drafts(const formats::Checkpoint& model, std::span<const DraftText> texts,
                             const RunOptions& options);

/// Level `draft`: how many of each side's first drafts its own main model would have taken.
struct DraftReport {
  std::uint64_t tokens = 0;  ///< drafts of each side
  std::uint64_t source_accepted = 0, output_accepted = 0;
  bool of_given_text = false;  ///< tokens are of the given text; false: of the source's answers
  /// The 95% interval of the loss, over runs of kDraftRun tokens; nullopt for fewer than two.
  std::optional<Interval> interval = {};

  /// Parts of 1. 0 without tokens.
  [[nodiscard]] double source_acceptance() const;
  [[nodiscard]] double output_acceptance() const;
  /// The source's acceptance less the output's, in points of a hundred: negative where the output
  /// drafts better.
  [[nodiscard]] double loss() const;
  /// The least loss: the lower end of the interval.
  [[nodiscard]] double sure_loss() const { return interval ? interval->low : loss(); }
};
/// Adjacent tokens that are taken as one draw, since they depend on each other.
inline constexpr std::size_t kDraftRun = 32;
DraftReport compare_drafts(const DraftOutcomes& source, const DraftOutcomes& output);

}  // namespace ingot::verify
