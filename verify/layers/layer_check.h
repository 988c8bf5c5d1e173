#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "verify/outputs/divergence.h"

namespace ingot::verify {

/// How alike the hidden states of tokens are: cosines in double between rows [D].
struct Similarity {
  double mean = 1, median = 1, worst = 1;
  double mean_without_first = 1;  ///< mean without token 0 of each prompt, whose norm is often huge
  double worst_without_first = 1;
  std::size_t worst_prompt = 0, worst_token = 0;
  double relative_error = 0;  ///< Frobenius over all tokens
  double max_error = 0;
  friend bool operator==(const Similarity&, const Similarity&) = default;
};

/// One layer on all prompts.
struct LayerAgreement {
  std::size_t layer = 0;
  bool is_mtp = false;
  Similarity isolated;     ///< both were given the source's hidden state
  Similarity accumulated;  ///< each continued its own
  /// Mean over tokens of the part of the source's chosen experts (isolated) that the output chose
  /// too; nullopt for layers without experts. Likewise positions of the indexer, over the rows
  /// where both chose.
  std::optional<double> router_overlap, indexer_overlap;
  friend bool operator==(const LayerAgreement&, const LayerAgreement&) = default;
};

/// "layer 3", "MTP layer 61".
std::string layer_title(const LayerAgreement& layer);

/// Level `layers`.
struct LayersReport {
  std::string source_profile, output_profile;
  std::size_t prompts = 0, tokens = 0;
  std::vector<LayerAgreement> layers;  ///< main layers, then the MTP layer when both have it
  LogitAgreement logits;
  std::optional<LogitAgreement> mtp_logits;
  std::vector<TokenDivergence> tokens_of_logits, tokens_of_mtp;  ///< the tokens of these sums
  friend bool operator==(const LayersReport&, const LayersReport&) = default;
};

/// Runs both models over the prompts layer by layer. A layer's weights are in memory while it runs,
/// its experts are read once for all tokens of all prompts and both modes, so memory stays within
/// `mem_limit` for models that do not: throws kLimit and names the memory that would suffice when
/// one layer, two experts and the hidden states do not fit. kMismatch when the models have other
/// shapes.
LayersReport compare_layers(const formats::Checkpoint& source, const formats::Checkpoint& output,
                            std::span<const Prompt> prompts, const RunOptions& options);

/// Runs on the other ranks while the first one is in compare_layers(): they compute the layers of
/// the output with it, each from its own directory. Only profile, threads, memory and ranks of the
/// options have an effect.
void follow_layers(const formats::Checkpoint& rank, const RunOptions& options);

}  // namespace ingot::verify
