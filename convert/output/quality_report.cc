#include "convert/output/quality_report.h"

#include <algorithm>
#include <map>

namespace ingot::convert {
QualityReport quality_report(const Plan& plan, const std::vector<TensorResult>& records,
                             std::size_t n_worst) {
  QualityReport report;
  std::map<std::pair<formats::SchemeId, formats::Role>, QualityReport::Row> rows;
  std::vector<std::pair<double, std::uint32_t>> by_error;
  for (std::uint32_t item = 0; item < records.size(); ++item) {
    const TensorResult& record = records[item];
    if (record.inexact_global) ++report.inexact_globals;
    if (!record.quality) continue;
    const quantize::QualitySums& sums = *record.quality;
    const PlannedTensor& planned = plan.tensors[item];
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const formats::Role role = tensor.rule != nullptr ? tensor.rule->role : formats::Role::kOther;
    QualityReport::Row& row = rows[{planned.to, role}];
    row.scheme = planned.to;
    row.role = std::string(formats::role_name(role));
    ++row.n_tensors;
    row.sums.add(sums);
    report.exact_blocks += sums.exact_blocks;
    report.rounded_blocks += sums.blocks - sums.exact_blocks;
    const bool was_quantized = formats::scheme_facts(tensor.encoding.scheme).quantized;
    if (was_quantized && sums.exact_blocks != sums.blocks) ++report.rounded_twice;
    if (sums.error2 > 0) by_error.emplace_back(-sums.relative_error(), item);
  }
  for (auto& [key, row] : rows) report.rows.push_back(std::move(row));
  // Equal errors in plan order, so that the list does not depend on anything else.
  std::sort(by_error.begin(), by_error.end());
  by_error.resize(std::min(by_error.size(), n_worst));
  for (const auto& [error, item] : by_error) {
    const PlannedTensor& planned = plan.tensors[item];
    report.worst.push_back({.tensor = plan.tensor_of(planned).name,
                            .scheme = planned.to,
                            .sums = *records[item].quality});
  }
  return report;
}

}  // namespace ingot::convert
