#include <fmt/format.h>

#include "verify/report/figures.h"
#include "verify/report/html_sections.h"
#include "verify/report/html_text.h"

namespace ingot::verify {
namespace {

constexpr std::size_t kWorst = 20;

std::string change_of(std::string_view from, std::string_view to) {
  return from == to ? html_text(to) : html_text(fmt::format("{} → {}", from, to));
}

// A count of faults is nothing, or it is to be seen.
std::string faults(std::uint64_t count) {
  return count == 0 ? "0" : fmt::format("<b class=\"bad-text\">{}</b>", count_text(count));
}

bool is_fault(Relation relation) {
  return relation == Relation::kChanged || relation == Relation::kNarrowed;
}

}  // namespace

std::string html_schemes(const Report& report) {
  if (!report.weights) return {};
  std::vector<std::vector<std::string>> rows;
  for (const WeightGroup& group : by_scheme_and_role(*report.weights)) {
    const ElementSums& sums = group.sums;
    rows.push_back({change_of(group.from, group.to), html_text(group.role),
                    count_text(group.tensors), count_text(group.identical),
                    cosine_text(sums.cosine()), cosine_text(group.least_cosine),
                    short_text(sums.relative_error()), decibel_text(sums.sqnr_db()),
                    faults(sums.misrounded), html_text(share_text(sums.saturated, sums.elements)),
                    html_text(share_text(sums.zeroed, sums.elements)),
                    fmt::format("{:.4f}", group.worst_scale)});
  }
  std::string note =
      fmt::format("{} tensors were compared", count_text(report.weights->tensors.size()));
  if (report.weights->unmatched > 0)
    note += fmt::format(", {} had no partner", count_text(report.weights->unmatched));
  if (report.weights->sample < 1)
    note += fmt::format("; {:g}% of the rows were looked at", 100 * report.weights->sample);
  return html_section("schemes", "Weights by scheme and role",
                      html_table({{.title = "scheme"},
                                  {.title = "role"},
                                  {.title = "tensors", .is_number = true},
                                  {.title = "identical", .is_number = true},
                                  {.title = "cosine", .is_number = true},
                                  {.title = "least", .is_number = true},
                                  {.title = "rel. error", .is_number = true},
                                  {.title = "SQNR dB", .is_number = true},
                                  {.title = "misrounded", .is_number = true},
                                  {.title = "saturated", .is_number = true},
                                  {.title = "zeroed", .is_number = true},
                                  {.title = "scale", .is_number = true}},
                                 rows) +
                          html_note(note + "."));
}

std::string html_worst(const Report& report) {
  if (!report.weights) return {};
  std::vector<std::vector<std::string>> rows;
  for (const TensorWeights* tensor : worst_tensors(*report.weights, kWorst)) {
    const ElementSums& sums = tensor->sums;
    const std::string relation = html_text(relation_name(tensor->relation));
    rows.push_back({html_text(tensor->name), change_of(tensor->from, tensor->to),
                    is_fault(tensor->relation) ? html_badge("bad", relation) : relation,
                    short_text(sums.relative_error()), decibel_text(sums.sqnr_db()),
                    cosine_text(sums.cosine()), faults(sums.misrounded), faults(sums.nonfinite),
                    short_text(sums.max_error), fmt::format("{:.4f}", sums.fitted_scale())});
  }
  if (rows.empty()) return {};
  return html_section("worst", "Worst tensors",
                      html_table({{.title = "tensor", .is_name = true},
                                  {.title = "scheme"},
                                  {.title = ""},
                                  {.title = "rel. error", .is_number = true},
                                  {.title = "SQNR dB", .is_number = true},
                                  {.title = "cosine", .is_number = true},
                                  {.title = "misrounded", .is_number = true},
                                  {.title = "not finite", .is_number = true},
                                  {.title = "max. error", .is_number = true},
                                  {.title = "scale", .is_number = true}},
                                 rows));
}

}  // namespace ingot::verify
