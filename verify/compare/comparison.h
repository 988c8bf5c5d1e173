#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json/json_fwd.h"
#include "verify/gates/report.h"
#include "verify/outputs/interval.h"

namespace ingot::verify {

/// A demand that A be no worse than B in a figure, or at most worse by `margin`.
struct Demand {
  std::string figure;
  double margin = 0;  ///< margin in the figure's unit, from 0 on
};
/// `text.kl<=B`, `text.kl<=B+1e-6`, `outputs.top1>=B-0.01`: a metric, the bound of its good side,
/// and a margin. kInvalidArgument for anything else.
Demand parse_demand(std::string_view text);

/// The demand in the words of parse_demand().
std::string demand_text(const Demand& demand);

/// Two outputs of one source, A and B. Reports have no gates; only the demands are judged.
struct Comparison {
  std::optional<Report> a;           ///< A against the reference; nullopt without one
  Report b;                          ///< B against the reference; without one, B against A
  std::vector<Demand> demands = {};  ///< demands on A, which need a reference

  /// Every demand holds.
  [[nodiscard]] bool passed() const;
};

/// True if two errors differ by more than 0.01 dB, which is 0.115%, and by more than 1e-8, which is
/// the rounding of their computation. NaN is farther than every number.
bool are_apart(double a, double b);

/// The output, of two, that is closer to the reference in a figure.
enum class Closer : std::uint8_t {
  kA,
  kB,
  kEqual,      ///< no pair is apart
  kUndecided,  ///< the interval of the difference holds 0
  kNeither,    ///< the figure tells nothing of closeness
};

/// A metric of both outputs (gate.h), or a likelihood that both give.
struct PairedFigure {
  std::string name;  ///< name of the metric; "outputs.nll" of the prompts, "text.nll" of --text
  std::string_view summary;
  /// kAtLeast where the larger value is closer to the reference, kAtMost where the smaller one is;
  /// nullopt: neither.
  std::optional<Bound> good = {};
  std::uint64_t pairs = 0;  ///< values that both have: of tensors, layers, tokens
  double a = 0, b = 0;      ///< means over the pairs of which both are finite
  double difference = 0;    ///< b - a
  /// The 95% interval of the difference, where the values are a sample: so many tokens of so many
  /// `drawn`, prompts or documents.
  std::optional<Interval> interval = {};
  std::uint64_t tokens = 0, clusters = 0;
  std::string_view drawn = {};
  std::uint64_t a_closer = 0, b_closer = 0;  ///< pairs that are apart
  std::string farthest = {};                 ///< subject of the largest difference of many

  /// Without an interval the mean of several values counts.
  [[nodiscard]] Closer closer() const;
};
/// Metrics of damage: whatever the means of others say, an output with more is not the better one.
inline constexpr std::array<std::string_view, 6> kDamageMetrics = {
    "structure.errors", "weights.unmatched", "weights.nonfinite",
    "weights.changed",  "weights.narrowed",  "layers.nonfinite"};
/// Every metric that both reports have values of: damage, then the most telling first.
std::vector<PairedFigure> paired_figures(const Report& a, const Report& b);

/// A demand and its result.
struct DemandResult {
  Demand demand;
  bool holds = false;
  /// How much worse A is than B at the most: the upper end of the 95% interval where the figure is
  /// of samples, else the difference itself. Below 0: A is better. NaN: there is none.
  double worse = 0;
  std::string reason;  ///< the figures, or why there are none
};
/// A demand holds if `worse` is at most its margin, or if no pair of the figure is apart. A figure
/// that was not measured holds no demand, nor one of samples that has no interval.
std::vector<DemandResult> judge_demands(const Comparison& comparison);

/// A tensor that both were compared in.
struct PairedTensor {
  const TensorWeights* a = nullptr;
  const TensorWeights* b = nullptr;
  /// Relative errors, B's less A's; 0 where they are not apart.
  [[nodiscard]] double difference() const {
    const double of_a = a->sums.relative_error(), of_b = b->sums.relative_error();
    return are_apart(of_a, of_b) ? of_b - of_a : 0;
  }
};
/// In the order of A's report; tensors of only one side are left out.
std::vector<PairedTensor> paired_tensors(const Report& a, const Report& b);

/// Tensors of both with their common properties.
struct PairedGroup {
  std::string role;                               ///< empty where the grouping is not by it
  std::optional<std::uint32_t> layer;             ///< nullopt where the grouping is not by layer
  std::vector<std::string> a_schemes, b_schemes;  ///< schemes in order of appearance
  /// Counts of all tensors, and of those where A or B has the smaller relative error.
  std::uint64_t tensors = 0, a_closer = 0, b_closer = 0;
  ElementSums a, b;
  /// SQNR in dB, B's less A's; 0 where the errors are not apart, infinite where one is exact.
  [[nodiscard]] double difference_db() const;
};
struct Grouping {
  bool by_role = false, by_layer = false;
};
/// In order of first appearance; by layer, tensors outside the layers are left out.
std::vector<PairedGroup> paired_groups(const std::vector<PairedTensor>& tensors, Grouping grouping);

/// A layer that both have.
struct PairedLayer {
  const LayerAgreement* a = nullptr;
  const LayerAgreement* b = nullptr;
};
std::vector<PairedLayer> paired_layers(const Report& a, const Report& b);

/// Says in one sentence which output is closer to the reference, by how much and where; without a
/// reference, how far apart the outputs are.
std::string comparison_sentence(const Comparison& comparison);

/// The forms of report.h.
formats::Json comparison_json(const Comparison& comparison, std::size_t n_worst = 100);
std::string comparison_text(const Comparison& comparison, std::optional<std::size_t> n_worst = {},
                            std::size_t width = 0);
std::string comparison_markdown(const Comparison& comparison);
std::string comparison_html(const Comparison& comparison);

}  // namespace ingot::verify
