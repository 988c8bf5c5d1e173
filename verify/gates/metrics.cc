#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "formats/storage/encoding.h"
#include "quantize/kernels/codes.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"
#include "verify/weights/group_reach.h"
#include "verify/weights/weight_check.h"

namespace ingot::verify {
namespace {

// Limits of tensors with few groups. A default limit is one of the mean over many groups that share
// a scale; that of a few groups scatters. With E the squared error of a group over its squared
// values, the cosine of a tensor is at least sqrt(1 - e), where e is the mean of E over its groups,
// weighted with their squared values. Rounding to the nearest bounds E: a value of at least one
// step of its grid is at most the part q of itself away from its code, a smaller one at most half
// the least step h, and the largest code of a group of g values is at least a, as weights.coarse
// demands. So E <= r = q^2 + g (h / a)^2, and at most 1. The mean of n numbers from 0 to r with
// the variance v is above its expectation by more than t = sqrt(2 v L / n) + r L / (3 n) with a
// probability of at most p = 1e-4, where L = ln(1 / p) (Bernstein). Groups whose values are so
// small that their scale is the least that a rule gives have an a of any size: their values are off
// by at most half a step of that scale, which is added (error2_at_floor).

/// ln(10^4): a tensor like those that the floors were measured on is below its own once in ten
/// thousand times at the most.
constexpr double kLogOdds = 9.21;

/// Limits are rounded to five digits, for readers.
constexpr double kDigits = 1e5;

/// The groups of a tensor: how many, and the largest squared error of one over its squared values.
struct Groups {
  double n = 0, most = 1;
  double at_floor = 0;  ///< error2_at_floor()
};

std::optional<Groups> groups_of(const TensorWeights& tensor) {
  const auto id = formats::find_scheme(tensor.to);
  if (!id || tensor.groups == 0 || tensor.relation != Relation::kQuantized) return std::nullopt;
  const formats::CodeKind kind = formats::scheme_facts(*id).code;
  if (kind == formats::CodeKind::kPlain) return std::nullopt;
  // The bound of nearest rounding: a value from the floor of steps on differs from its code by at
  // most `relative` times itself, a smaller value by at most half a step.
  const quantize::CodeFacts code = quantize::code_facts(kind);
  const double steps = 1 / static_cast<double>(code.step_factor);
  const double relative = code.is_even() ? 0 : 1 / (2 * steps + 1);
  const double half_step = static_cast<double>(code.floor) / steps / 2;
  const double small = half_step / static_cast<double>(least_reach(*id, 1));
  const double most =
      relative * relative + static_cast<double>(tensor.group_elements) * small * small;
  // Groups that rounding left as they were, as those of zeros, have no part in the error.
  const std::uint64_t changed = tensor.reach.groups;
  return Groups{.n = static_cast<double>(changed == 0 ? tensor.groups : changed),
                .most = std::min(most, 1.0),
                .at_floor = error2_at_floor(*id, tensor.sums)};
}

/// How far the mean of n independent numbers may be above its expectation (Bernstein): they have
/// this variance, and none is farther than `most` above.
double scatter(double variance, double most, double n) {
  return std::sqrt(2 * variance * kLogOdds / n) + most * kLogOdds / (3 * n);
}

/// The floor of a tensor's cosine, where `floor` is that of large ones.
double cosine_floor(double floor, const TensorWeights& tensor) {
  if (tensor.is_rounded_apart)
    floor = std::max(floor, four_bit_floor(tensor.to, kWeightedSearch));
  const auto groups = groups_of(tensor);
  if (!groups) return floor;
  const double mean = 1 - floor * floor;
  // Numbers between 0 and `most` with this mean vary no more (Bhatia and Davis).
  const double variance = mean * std::max(groups->most - mean, 0.0);
  const double usual = std::min(groups->most, mean + scatter(variance, groups->most, groups->n));
  // A code is never farther from its value than 0 is.
  const double error2 = std::min(usual + groups->at_floor, 1.0);
  return std::floor(std::sqrt(1 - std::max(error2, mean)) * kDigits) / kDigits;
}

/// How far from 1 the factor that fits a tensor may be, where `most` is that of large ones.
double scale_error_limit(double most, const TensorWeights& tensor) {
  const auto groups = groups_of(tensor);
  if (!groups) return most;
  // The factor is 1 + (sum of x e) / (sum of x^2). Of a group this is at most the root of its
  // relative squared error (Cauchy and Schwarz), so that its mean square is at most the mean error.
  const double error2 = tensor.sums.relative_error() * tensor.sums.relative_error();
  const double largest = std::sqrt(groups->most);
  const double usual = std::min(largest, error2 + scatter(error2, largest, groups->n));
  const double limit = std::min(usual + std::sqrt(groups->at_floor), 1.0);
  return std::max(most, std::ceil(limit * kDigits) / kDigits);
}

using See = std::function<void(double value, std::string_view group, const std::string& subject)>;

const std::string kWhole;  // the subject of a value that is one for the whole report

double count(std::uint64_t n) {
  return static_cast<double>(n);
}

// An activation that is not finite passes no gate, whichever side of the limit it is on.
double finite_or_nan(double value) {
  return std::isfinite(value) ? value : std::numeric_limits<double>::quiet_NaN();
}

void structure_errors(const Report& report, const See& see) {
  if (!report.structure) return;
  const auto& findings = report.structure->findings;
  const auto first =
      std::ranges::find(findings, check::Severity::kError, &check::Finding::severity);
  if (first == findings.end()) return see(0, {}, kWhole);
  const std::string& subject = first->tensor.empty() ? first->file : first->tensor;
  see(count(report.structure->errors()), {},
      subject.empty() ? first->message : fmt::format("{}: {}", subject, first->message));
}

void weights_unmatched(const Report& report, const See& see) {
  if (report.weights) see(count(report.weights->unmatched), {}, kWhole);
}

// A row of the table that has one value per tensor.
template <auto Value>
void per_tensor(const Report& report, const See& see) {
  if (!report.weights) return;
  for (const TensorWeights& tensor : report.weights->tensors)
    see(Value(tensor), tensor.to, tensor.name);
}

// The quotient of two roots need not be 1 where every value is equal.
double cosine(const TensorWeights& tensor) {
  const bool equal = tensor.relation == Relation::kIdentical || tensor.sums.error2 == 0;
  return equal && tensor.sums.nonfinite == 0 ? 1 : tensor.sums.cosine();
}
double scale_error(const TensorWeights& tensor) {
  return std::abs(tensor.sums.fitted_scale_within() - 1);
}
// A row that has one value per layer, or none for layers without it.
template <auto Value>
void per_layer(const Report& report, const See& see) {
  if (!report.layers) return;
  for (const LayerAgreement& layer : report.layers->layers) {
    if (const std::optional<double> value = std::invoke(Value, layer))
      see(finite_or_nan(*value), report.output.kind, layer_title(layer));
  }
}

template <bool of_mtp>
std::optional<double> isolated_mean(const LayerAgreement& layer) {
  return layer.is_mtp == of_mtp ? std::optional(layer.isolated.mean) : std::nullopt;
}

void cache_clipped(const Report& report, const See& see) {
  if (!report.layers) return;
  for (const LayerAgreement& layer : report.layers->layers) {
    for (const ClippedCache& cache : layer.cache)
      see(cache.clipped(cache.stored), report.output.kind,
          fmt::format("{} of {}", cache.of, layer_title(layer)));
  }
}

bool is_finite(const Similarity& similarity) {
  return std::isfinite(similarity.mean) && std::isfinite(similarity.worst) &&
         std::isfinite(similarity.relative_error) && std::isfinite(similarity.max_error);
}
bool is_finite(const LogitAgreement& logits) {
  return std::isfinite(logits.mean_kl) && std::isfinite(logits.worst_kl) &&
         std::isfinite(logits.max_error) && std::isfinite(logits.output_nll);
}

void layers_nonfinite(const Report& report, const See& see) {
  if (!report.layers) return;
  const auto tell = [&](bool finite, const std::string& subject) {
    see(finite ? 0 : 1, report.output.kind, subject);
  };
  for (const LayerAgreement& layer : report.layers->layers)
    tell(is_finite(layer.isolated) && is_finite(layer.accumulated), layer_title(layer));
  if (report.layers->logits.tokens > 0) tell(is_finite(report.layers->logits), "logits");
  if (report.layers->mtp_logits) tell(is_finite(*report.layers->mtp_logits), "MTP logits");
}

// A row that has one value of the logits.
template <double LogitAgreement::*Member>
void of_logits(const Report& report, const See& see) {
  if (!report.layers || report.layers->logits.tokens == 0) return;
  const LogitAgreement& logits = report.layers->logits;
  see(finite_or_nan(logits.*Member), report.output.kind,
      fmt::format("worst at prompt {}, token {}", logits.worst_prompt + 1, logits.worst_token));
}

void mtp_kl(const Report& report, const See& see) {
  if (report.layers && report.layers->mtp_logits)
    see(finite_or_nan(report.layers->mtp_logits->mean_kl), report.output.kind, kWhole);
}

void text_kl(const Report& report, const See& see) {
  if (report.text && report.text->source)
    see(finite_or_nan(kl_of(*report.text).mean), report.output.kind, kWhole);
}

void perplexity(const Report& report, const See& see) {
  double ratio = 0;  // logarithm of the ratio
  if (report.text && report.text->source) {
    ratio = log_ratio_of(*report.text).mean;
  } else if (report.layers && report.source && report.layers->logits.tokens > 0) {
    ratio = report.layers->logits.output_nll - report.layers->logits.source_nll;
  } else {
    return;
  }
  see(finite_or_nan(std::abs(ratio)), report.output.kind, kWhole);
}

void greedy_different(const Report& report, const See& see) {
  if (!report.greedy) return;
  const auto& prompts = report.greedy->prompts;
  const auto first = std::find_if(prompts.begin(), prompts.end(), [](const GreedyPrompt& prompt) {
    return prompt.outcome == GreedyOutcome::kDifferent;
  });
  see(count(report.greedy->different), report.output.kind,
      first == prompts.end() ? kWhole
                             : fmt::format("prompt {}, token {}", first - prompts.begin() + 1,
                                           first->first_difference.value_or(0)));
}

void greedy_inconclusive(const Report& report, const See& see) {
  if (!report.greedy || report.greedy->prompts.empty()) return;
  see(count(report.greedy->inconclusive) / count(report.greedy->prompts.size()), report.output.kind,
      kWhole);
}

void draft_acceptance(const Report& report, const See& see) {
  if (!report.draft || report.draft->tokens == 0) return;
  see(report.draft->sure_loss(), report.output.kind,
      fmt::format("{} drafts", report.draft->tokens));
}

constexpr std::array kMetrics{
    Metric{"structure.errors", Bound::kAtMost, "errors found in the output's structure",
           structure_errors},
    Metric{"weights.unmatched", Bound::kAtMost, "tensors that only one side has",
           weights_unmatched},
    Metric{"weights.misrounded", Bound::kAtMost,
           "values farther than half a grid step from the source's, per tensor",
           per_tensor<[](const TensorWeights& tensor) { return count(tensor.sums.misrounded); }>},
    Metric{"weights.coarse", Bound::kAtMost,
           "rows, groups and blocks whose largest code is needlessly small: the scale is too large",
           per_tensor<[](const TensorWeights& tensor) { return count(tensor.reach.coarse); }>},
    Metric{"weights.changed", Bound::kAtMost,
           "1 for a tensor of the same scheme that is not the same",
           per_tensor<[](const TensorWeights& tensor) {
             return tensor.relation == Relation::kChanged ? 1.0 : 0.0;
           }>},
    Metric{"weights.narrowed", Bound::kAtMost, "1 for a plain tensor that lost bits",
           per_tensor<[](const TensorWeights& tensor) {
             return tensor.relation == Relation::kNarrowed ? 1.0 : 0.0;
           }>},
    Metric{"weights.nonfinite", Bound::kAtMost,
           "NaN or infinite values where the source has numbers, per tensor",
           per_tensor<[](const TensorWeights& tensor) { return count(tensor.sums.nonfinite); }>},
    Metric{"weights.cosine", Bound::kAtLeast, "cosine with the source's values, per tensor",
           per_tensor<cosine>, cosine_floor},
    Metric{"weights.scale_error", Bound::kAtMost,
           "distance from 1 of the factor that fits a tensor to the source's best",
           per_tensor<scale_error>, scale_error_limit},
    Metric{"weights.lone_factor", Bound::kAtMost,
           "that distance, if the factor explains nearly the whole error of the tensor",
           per_tensor<lone_factor>},
    Metric{"weights.relative_error", Bound::kAtMost,
           "Frobenius norm of the error over the source's",
           per_tensor<[](const TensorWeights& tensor) { return tensor.sums.relative_error(); }>},
    Metric{"weights.sqnr", Bound::kAtLeast, "signal to quantization noise in dB, per tensor",
           per_tensor<[](const TensorWeights& tensor) { return tensor.sums.sqnr_db(); }>},
    Metric{"layers.nonfinite", Bound::kAtMost, "1 for a layer whose outputs are not all finite",
           layers_nonfinite},
    Metric{"layers.cosine", Bound::kAtLeast,
           "mean cosine of hidden states, both given the source's input, of main layers",
           per_layer<isolated_mean<false>>},
    Metric{"layers.worst", Bound::kAtLeast,
           "least cosine of a token, both given the source's input",
           per_layer<[](const LayerAgreement& layer) { return layer.isolated.worst; }>},
    Metric{"layers.accumulated", Bound::kAtLeast,
           "mean cosine of hidden states, each continuing its own",
           per_layer<[](const LayerAgreement& layer) { return layer.accumulated.mean; }>},
    Metric{"layers.router", Bound::kAtLeast, "part of the source's experts that is chosen too",
           per_layer<&LayerAgreement::router_overlap>},
    Metric{"layers.indexer", Bound::kAtLeast, "part of the source's positions that is chosen too",
           per_layer<&LayerAgreement::indexer_overlap>},
    Metric{"cache.clipped", Bound::kAtMost,
           "part of what a layer caches that its stored FP8 scales cut off", cache_clipped},
    Metric{"outputs.kl", Bound::kAtMost, "mean KL(source || output) of the next token, nats",
           of_logits<&LogitAgreement::mean_kl>},
    Metric{"outputs.top1", Bound::kAtLeast, "part of tokens with the same likeliest successor",
           of_logits<&LogitAgreement::top1>},
    Metric{"outputs.top5", Bound::kAtLeast, "overlap of the five likeliest successors",
           of_logits<&LogitAgreement::top5>},
    Metric{"outputs.perplexity", Bound::kAtMost,
           "|ln(perplexity of the output / of the source)|, of --text, else of the prompts",
           perplexity},
    Metric{"text.kl", Bound::kAtMost, "mean KL(source || output) of the tokens of --text, nats",
           text_kl},
    Metric{"mtp.cosine", Bound::kAtLeast, "layers.cosine of the MTP layer",
           per_layer<isolated_mean<true>>},
    Metric{"mtp.kl", Bound::kAtMost, "outputs.kl of the MTP layer", mtp_kl},
    Metric{"greedy.different", Bound::kAtMost, "prompts that are answered differently",
           greedy_different},
    Metric{"greedy.inconclusive", Bound::kAtMost,
           "part of prompts whose answers part where the source was nearly undecided",
           greedy_inconclusive},
    Metric{"draft.acceptance", Bound::kAtMost,
           "points of a hundred by which fewer first drafts hold than the source's, at the least",
           draft_acceptance},
};

}  // namespace

std::span<const Metric> metrics() {
  return kMetrics;
}

const Metric* find_metric(std::string_view name) {
  const auto found = std::find_if(kMetrics.begin(), kMetrics.end(),
                                  [&](const Metric& metric) { return metric.name == name; });
  return found == kMetrics.end() ? nullptr : &*found;
}

}  // namespace ingot::verify
