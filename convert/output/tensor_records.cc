#include "convert/output/tensor_records.h"

#include <algorithm>
#include <map>

#include "formats/family/cache_scales.h"

namespace ingot::convert {

using formats::TensorHash;
using formats::TensorRecord;

TensorRecord record_of(const Plan& plan, const PlannedTensor& planned, const TensorResult& done) {
  const formats::LogicalTensor& tensor = plan.tensor_of(planned);
  TensorRecord record{.name = tensor.name,
                      .role = std::string(formats::role_name(role_of(tensor))),
                      .layer = tensor.layer,
                      .expert = tensor.expert,
                      .action = std::string(action_name(planned.action)),
                      .from = std::string(formats::scheme_facts(tensor.encoding.scheme).name),
                      .to = std::string(formats::scheme_facts(planned.to).name),
                      .source = {},
                      .output = {}};
  if (const auto givers = plan.source.givers(); !givers.empty())
    record.giver = givers[tensor.giver].name;
  record.error = done.recorded_error;
  if (done.quality) {
    const quantize::QualitySums& sums = *done.quality;
    record.error = {.relative_error = sums.relative_error(),
                    .sqnr_db = sums.sqnr_db(),
                    .cosine = sums.cosine(),
                    .max_error = sums.max_error,
                    .elements = sums.elements,
                    .saturated = sums.saturated,
                    .zeroed = sums.zeroed,
                    .blocks = sums.blocks,
                    .exact_blocks = sums.exact_blocks};
  }
  if (done.keeps_codes) record.action = action_name(Action::kRewrap);
  if (done.change) {
    record.change = {.survival = done.change->survival(),
                     .cosine = done.change->cosine(),
                     .relative_change = done.change->relative_change()};
  }
  record.original_global = done.original_global;
  record.carries_errors = done.carries_errors;
  return record;
}

std::vector<TensorHash> source_hashes(const Plan& plan, const PlannedTensor& planned,
                                      const TensorResult& done) {
  std::vector<TensorHash> hashes;
  // Scales that were made are of no tensor of the source.
  if (plan.recipe.choices.kv_scales && formats::is_cache_scale(plan.tensor_of(planned).rule))
    return hashes;
  for (const std::uint32_t index : plan.stored_of(planned)) {
    const formats::StoredTensor& stored = plan.source.stored()[index];
    hashes.push_back({.name = stored.name,
                      .file = plan.source.files()[stored.file].name,
                      .dtype = std::string(formats::dtype_name(stored.dtype)),
                      .shape = stored.shape,
                      .hash = done.source.at(hashes.size())});
  }
  return hashes;
}

TensorHash output_hash(const Plan& plan, const PlannedTensor& planned, std::size_t part,
                       const PlannedSlice& slice, const TensorResult& done, std::string file) {
  TensorHash entry{.name = plan.part_name(planned, part),
                   .file = std::move(file),
                   .dtype = std::string(formats::dtype_name(planned.parts[part].dtype)),
                   .shape = {},
                   .hash = done.output.at(part).at(slice.hash)};
  std::string home = unsliced_file(plan, planned, planned.parts[part].part);
  if (plan.is_sliced() && home != unsliced_file(plan, planned, formats::Part::kWeight))
    entry.home_file = std::move(home);
  if (!plan.is_sliced()) {
    entry.shape = plan.part_shape(planned, part);
    return entry;
  }
  const PlannedPlace& place = plan.places[slice.place];
  const std::uint32_t ep_rank = place.ep_rank;
  const shard::PartCut cut = plan.part_cut(planned, part, ep_rank);
  using Kind = shard::PartCut::Kind;
  entry.shape = cut.slice_shape();
  if (place.joined != PlannedPlace::kOwn) {
    const PlannedFile::Joined& joined = plan.files[place.file].joined[place.joined];
    if (joined.n_parts > 1 || joined.spec.name != entry.name || joined.is_turned) {
      entry.piece = {.of = joined.spec.name,
                     .offset = place.offset - joined.offset,
                     .is_turned = joined.is_turned};
    }
  }
  const shard::AlignedPart aligned = plan.aligned(planned, part);
  const formats::Shape original = plan.part_shape(planned, part);
  const bool is_zeroed = cut.kind() == Kind::kFirstOnly && slice.slice > 0;
  if (entry.shape == cut.whole_shape() && !is_zeroed && aligned.shape == original) return entry;
  formats::SliceRecord& record = entry.slice.emplace();
  record.whole = cut.whole_shape();
  record.is_zeroed = is_zeroed;
  if (cut.kind() == Kind::kCut) {
    record.axis = cut.axis();
    record.offset = cut.slice_offset(slice.slice);
    record.sections = cut.sections();
  } else if (aligned.sections > 1 && aligned.shape != original) {
    // In one slice, but padded section by section.
    record.axis = static_cast<int>(record.whole.size()) - 2;
    record.sections = formats::Sections::equal(aligned.sections);
  }
  if (ep_rank != PlannedPlace::kAllExperts) {
    const auto experts = plan.slicing->experts.experts_of(*plan.tensor_of(planned).layer, ep_rank);
    record.experts.assign(experts.begin(), experts.end());
  }
  if (aligned.shape != original) {
    record.original = original;
    record.repeat = aligned.repeat;
  }
  return entry;
}

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
    if (planned.carries_errors && !record.carries_errors) report.indefinite.push_back(tensor.name);
    const formats::Role role = role_of(tensor);
    QualityReport::Row& row = rows[{planned.to, role}];
    row.scheme = planned.to;
    row.role = std::string(formats::role_name(role));
    ++row.n_tensors;
    row.sums.add(sums);
    report.exact_blocks += sums.exact_blocks;
    report.rounded_blocks += sums.blocks - sums.exact_blocks;
    const bool was_quantized = is_coded(tensor.encoding.scheme);
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

ChangeReport change_report(const Plan& plan, const std::vector<TensorResult>& records) {
  ChangeReport report;
  std::map<std::pair<formats::SchemeId, formats::Role>, ChangeReport::Row> roles;
  for (std::uint32_t item = 0; item < records.size(); ++item) {
    const TensorResult& record = records[item];
    const PlannedTensor& planned = plan.tensors[item];
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    if (planned.may_keep_codes && !record.keeps_codes && !record.output.empty())
      report.encoded_again.push_back(tensor.name);
    if (!record.change) continue;
    const formats::Role role = role_of(tensor);
    ChangeReport::Row& row = roles[{planned.to, role}];
    row.scheme = planned.to;
    row.name = formats::role_name(role);
    ++row.n_tensors;
    quantize::add_fields(row.sums, *record.change);
    quantize::add_fields(report.sums, *record.change);
    report.tensors.push_back(
        {.scheme = planned.to, .name = tensor.name, .n_tensors = 1, .sums = *record.change});
  }
  for (auto& [key, row] : roles) report.roles.push_back(std::move(row));
  std::ranges::stable_sort(report.tensors, {},
                           [](const ChangeReport::Row& row) { return row.sums.survival(); });
  return report;
}

}  // namespace ingot::convert
