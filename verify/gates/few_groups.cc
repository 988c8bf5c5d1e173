#include "verify/gates/few_groups.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "formats/storage/encoding.h"
#include "quantize/kernels/codes.h"
#include "verify/weights/group_reach.h"

namespace ingot::verify {
namespace {

/// ln(10^4): a tensor like those that the floors were measured on is below its own once in ten
/// thousand times at the most.
constexpr double kLogOdds = 9.21;

/// Limits are rounded to five digits, for readers.
constexpr double kDigits = 1e5;

/// The groups of a tensor: how many, and the largest squared error of one over its squared values.
struct Groups {
  double n = 0, most = 1;
};

std::optional<Groups> groups_of(const TensorWeights& tensor) {
  const auto id = formats::find_scheme(tensor.to);
  if (!id || tensor.groups == 0 || tensor.relation != Relation::kQuantized) return std::nullopt;
  const formats::CodeKind kind = formats::scheme_facts(*id).code;
  if (kind == formats::CodeKind::kPlain) return std::nullopt;
  // Under nearest rounding a value is at most `relative` of itself away from its code from the
  // floor of steps on; below, at most half a step.
  const quantize::CodeFacts code = quantize::code_facts(kind);
  const double steps = 1 / static_cast<double>(code.step_factor);
  const double relative = code.is_even() ? 0 : 1 / (2 * steps + 1);
  const double half_step = static_cast<double>(code.floor) / steps / 2;
  const double small = half_step / static_cast<double>(least_reach(*id, 1));
  const double most =
      relative * relative + static_cast<double>(tensor.group_elements) * small * small;
  return Groups{.n = static_cast<double>(tensor.groups), .most = std::min(most, 1.0)};
}

/// How far the mean of n independent numbers may be above its expectation (Bernstein): they have
/// this variance, and none is farther than `most` above.
double scatter(double variance, double most, double n) {
  return std::sqrt(2 * variance * kLogOdds / n) + most * kLogOdds / (3 * n);
}

}  // namespace

double cosine_floor(double floor, const TensorWeights& tensor) {
  const auto groups = groups_of(tensor);
  if (!groups) return floor;
  const double mean = 1 - floor * floor;
  // Numbers between 0 and `most` with this mean vary no more (Bhatia and Davis).
  const double variance = mean * std::max(groups->most - mean, 0.0);
  const double error2 = std::min(groups->most, mean + scatter(variance, groups->most, groups->n));
  return std::floor(std::sqrt(1 - std::max(error2, mean)) * kDigits) / kDigits;
}

double scale_error_limit(double most, const TensorWeights& tensor) {
  const auto groups = groups_of(tensor);
  if (!groups) return most;
  // The factor is 1 + (sum of x e) / (sum of x^2). Of a group this is at most the root of its
  // relative squared error (Cauchy and Schwarz), so that its mean square is at most the mean error.
  const double error2 = tensor.sums.relative_error() * tensor.sums.relative_error();
  const double largest = std::sqrt(groups->most);
  const double limit = std::min(largest, error2 + scatter(error2, largest, groups->n));
  return std::max(most, std::ceil(limit * kDigits) / kDigits);
}

}  // namespace ingot::verify
