#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "formats/base/figures.h"
#include "verify/report/sections.h"

namespace ingot::verify {
namespace {

// Nothing was lost.
bool is_exact(const WeightGroup& group) {
  return group.sums.exact + group.sums.source_nonfinite == group.sums.elements;
}

// Where little is to be read, what is exact takes a row per pair of schemes, after the rest.
std::vector<WeightGroup> summed_up(std::vector<WeightGroup> groups) {
  const auto rest = std::stable_partition(groups.begin(), groups.end(),
                                          [](const auto& group) { return !is_exact(group); });
  std::vector<WeightGroup> shown(groups.begin(), rest);
  std::map<std::pair<std::string, std::string>, std::pair<std::size_t, std::size_t>> rows;
  for (auto group = rest; group != groups.end(); ++group) {
    const auto [row, is_new] = rows.try_emplace({group->from, group->to}, shown.size(), 0);
    if (is_new) shown.push_back({.from = group->from, .to = group->to});
    WeightGroup& sum = shown[row->second.first];
    sum.role =
        ++row->second.second == 1 ? group->role : fmt::format("{} roles", row->second.second);
    sum.tensors += group->tensors;
    sum.identical += group->identical;
    sum.sums.add(group->sums);
  }
  return shown;
}

Cell faults(std::uint64_t count) {
  return {count_text(count), count == 0 ? Style::kPlain : Style::kFault};
}

Section schemes_section(const WeightsReport& weights, Form form) {
  Table table{.columns = {form == Form::kPage ? "scheme" : "weights", "role", number("tensors"),
                          number("identical"), number("cosine"), number("least"),
                          number("rel. error"), number("SQNR dB"), number("misrounded"),
                          number("saturated"), number("zeroed"), number("scale")}};
  std::vector<WeightGroup> groups = by_scheme_and_role(weights);
  if (form != Form::kPage) groups = summed_up(std::move(groups));
  for (const WeightGroup& group : groups) {
    const ElementSums& sums = group.sums;
    table.rows.push_back(
        {change_text(group.from, group.to), group.role, count_text(group.tensors),
         count_text(group.identical), cosine_text(sums.cosine()), cosine_text(group.least_cosine),
         short_text(sums.relative_error()), decibel_text(sums.sqnr_db()), faults(sums.misrounded),
         share_text(sums.saturated, sums.elements), share_text(sums.zeroed, sums.elements),
         fmt::format("{:.4f}", group.worst_scale)});
  }
  if (form != Form::kPage) table.keep({0, 1, 2, 3, 4, 6, 7, 8, 9, 11});
  Section section{"schemes", "Weights by scheme and role", {std::move(table)}};
  const auto note = [&](std::string text) {
    section.blocks.push_back(Paragraph{std::move(text), true});
  };
  if (form != Form::kText)
    note(fmt::format("{} tensors were compared", count_text(weights.tensors.size())));
  if (weights.unmatched > 0)
    note(fmt::format("{} tensors had no partner", count_text(weights.unmatched)));
  if (weights.sample < 1)
    note(fmt::format("{:g}% of the rows were looked at", 100 * weights.sample));
  return section;
}

Section worst_section(const WeightsReport& weights, Form form, std::size_t n_worst) {
  Table table{
      .columns = {name(form == Form::kPage ? "tensor" : "worst tensors"), "scheme", "",
                  number("rel. error"), number("SQNR dB"), number("cosine"), number("misrounded"),
                  number("not finite"), number("max. error"), number("scale")},
      .least_rows = 5};
  for (const TensorWeights* tensor : worst_tensors(weights, n_worst)) {
    // Whatever has no error is no worse than the rest.
    if (tensor->relation == Relation::kIdentical) continue;
    const ElementSums& sums = tensor->sums;
    const bool is_bad =
        tensor->relation == Relation::kChanged || tensor->relation == Relation::kNarrowed;
    table.rows.push_back(
        {tensor->name, change_text(tensor->from, tensor->to),
         Cell(std::string(relation_name(tensor->relation)), is_bad ? Style::kBad : Style::kPlain),
         short_text(sums.relative_error()), decibel_text(sums.sqnr_db()),
         cosine_text(sums.cosine()), faults(sums.misrounded), faults(sums.nonfinite),
         short_text(sums.max_error), fmt::format("{:.4f}", sums.fitted_scale())});
  }
  if (form != Form::kPage) table.keep({0, 1, 2, 3, 4, 5, 6, 9});
  return {"worst", "Worst tensors", {std::move(table)}};
}

}  // namespace

void add_weight_sections(const Report& report, Form form, std::size_t n_worst, Sections& sections) {
  if (!report.weights) return;
  const WeightsReport& weights = *report.weights;
  sections.push_back(schemes_section(weights, form));
  if (form == Form::kPage) {
    sections.push_back(
        {"heatmap",
         "Weights by layer and role",
         {draw_heat_map(weights),
          Paragraph{"Signal to quantization noise of all tensors of a role in a layer (columns), "
                    "against the source's values. Faults: changed, narrowed, misrounded, coarse or "
                    "not finite.",
                    true}}});
    sections.push_back(
        {"histogram",
         "Errors in grid steps",
         {draw_histograms(weights),
          Paragraph{
              "Some rows of every tensor, evenly spread. Rounding to the nearest ends at half a "
              "step; beyond it are faults and values larger than the largest code.",
              true}}});
  }
  sections.push_back(worst_section(weights, form, n_worst));
}

}  // namespace ingot::verify
