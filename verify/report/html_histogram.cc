#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"
#include "verify/report/svg.h"

namespace ingot::verify {
namespace {

constexpr double kWidth = 420, kHeight = 250;
constexpr double kLeft = 62, kRight = 16, kTop = 22, kBottom = 46;
constexpr int kLowDecade = -7;        // least share that is drawn
constexpr std::size_t kHalfStep = 8;  // bins up to half a step
constexpr double kBinsPerStep = 16;

using Histogram = std::array<std::uint64_t, kStepBins>;

struct SchemeErrors {
  std::string scheme;
  Histogram bins{};
};

// Of what was rounded to a grid: by the output's scheme, in order of first appearance.
std::vector<SchemeErrors> errors_by_scheme(const WeightsReport& weights) {
  std::vector<SchemeErrors> all;
  for (const TensorWeights& tensor : weights.tensors) {
    if (tensor.relation != Relation::kQuantized && tensor.relation != Relation::kChanged) continue;
    auto found = std::find_if(all.begin(), all.end(), [&](const SchemeErrors& errors) {
      return errors.scheme == tensor.to;
    });
    if (found == all.end()) found = all.insert(all.end(), {.scheme = tensor.to});
    for (std::size_t i = 0; i < kStepBins; ++i) found->bins[i] += tensor.sums.step_histogram[i];
  }
  std::erase_if(all, [](const SchemeErrors& errors) {
    return std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0}) == 0;
  });
  return all;
}

double x_of(double bin) {
  return kLeft + (kWidth - kLeft - kRight) * bin / static_cast<double>(kStepBins);
}

// Shares stand on a logarithmic axis: one value in a million beyond half a step is what to see.
double y_of(double decade) {
  const double part = std::clamp((decade - kLowDecade) / -kLowDecade, 0.0, 1.0);
  return kHeight - kBottom - part * (kHeight - kBottom - kTop);
}

std::string bin_title(std::size_t bin, std::uint64_t values, std::uint64_t all) {
  const double low = static_cast<double>(bin) / kBinsPerStep;
  const std::string range =
      bin + 1 == kStepBins ? fmt::format("{} steps and more", low)
                           : fmt::format("{:.4g} to {:.4g} steps", low, low + 1 / kBinsPerStep);
  return fmt::format("{}: {} values, {}", range, count_text(values), share_text(values, all));
}

std::string drawing(const SchemeErrors& errors) {
  Svg svg(kWidth, kHeight, fmt::format("errors of {} in grid steps", errors.scheme), true);
  const auto all = std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0});
  for (int decade = kLowDecade; decade <= 0; ++decade) {
    svg.line({kLeft, y_of(decade)}, {kWidth - kRight, y_of(decade)},
             decade == kLowDecade ? "axis" : "grid");
    svg.text({kLeft - 7, y_of(decade) + 4}, "end", power_of_ten(decade));
  }
  for (std::size_t bin = 0; bin < kStepBins; ++bin) {
    if (errors.bins[bin] == 0) continue;
    const double share = static_cast<double>(errors.bins[bin]) / static_cast<double>(all);
    const double top = std::min(y_of(std::log10(share)), y_of(kLowDecade) - 2);
    svg.rect({x_of(static_cast<double>(bin)) + 1, top}, x_of(1) - x_of(0) - 2,
             y_of(kLowDecade) - top, bin < kHalfStep ? "a" : "fault",
             bin_title(bin, errors.bins[bin], all));
  }
  for (const double steps : {0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5}) {
    svg.text({x_of(steps * kBinsPerStep), y_of(kLowDecade) + 17}, "mid", fmt::format("{}", steps));
  }
  svg.line({x_of(kHalfStep), y_of(0) - 8}, {x_of(kHalfStep), y_of(kLowDecade)}, "limit");
  svg.text({x_of(kHalfStep) + 6, y_of(0) - 7}, "limit-text", "half a step");
  svg.text({(kLeft + kWidth - kRight) / 2, kHeight - 6}, "mid soft",
           "error in steps of the output's grid");
  svg.vertical_text({14, (y_of(0) + y_of(kLowDecade)) / 2}, "mid soft", "share of values");
  return svg.finish();
}

}  // namespace

std::string html_histogram(const Report& report) {
  if (!report.weights) return {};
  const std::vector<SchemeErrors> schemes = errors_by_scheme(*report.weights);
  std::string body;
  for (const SchemeErrors& errors : schemes) {
    const auto all = std::accumulate(errors.bins.begin(), errors.bins.end(), std::uint64_t{0});
    const auto beyond =
        std::accumulate(errors.bins.begin() + kHalfStep, errors.bins.end(), std::uint64_t{0});
    body += fmt::format(
        "<figure>\n<figcaption><b>{}</b> {} values, {} beyond half a step"
        "</figcaption>\n{}</figure>\n",
        html_text(errors.scheme), count_text(all),
        beyond == 0 ? "none" : html_text(share_text(beyond, all)), html_scroll(drawing(errors)));
  }
  if (body.empty()) {
    body = "<p>No tensor was rounded to another grid.</p>\n";
  } else {
    body = fmt::format("<div class=\"figures\">\n{}</div>\n", body) +
           html_note(
               "Of some rows of every tensor, evenly spread. Rounding to the nearest ends at half "
               "a step; beyond it "
               "are faults and values larger than the largest code.");
  }
  return html_section("histogram", "Errors in grid steps", body);
}

}  // namespace ingot::verify
