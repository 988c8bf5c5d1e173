#include "convert/output/tensor_records.h"

#include <algorithm>

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::StoredTensor;
using formats::TensorHash;
using formats::TensorRecord;

TensorRecord record_of(const Plan& plan, const PlannedTensor& planned, const TensorResult& done) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  TensorRecord record{.name = tensor.name,
                      .role = std::string(formats::role_name(tensor.rule ? tensor.rule->role
                                                                         : formats::Role::kOther)),
                      .layer = tensor.layer,
                      .expert = tensor.expert,
                      .action = std::string(action_name(planned.action)),
                      .from = std::string(formats::scheme_facts(tensor.encoding.scheme).name),
                      .to = std::string(formats::scheme_facts(planned.to).name),
                      .source = {},
                      .output = {}};
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
  record.original_global = done.original_global;
  return record;
}

std::vector<TensorHash> source_hashes(const Plan& plan, const PlannedTensor& planned,
                                      const TensorResult& done) {
  std::vector<TensorHash> hashes;
  for (const std::uint32_t index : plan.stored_of(planned)) {
    const StoredTensor& stored = plan.source.stored()[index];
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
  const std::uint32_t ep_rank = plan.places[slice.place].ep_rank;
  const shard::PartCut cut = plan.part_cut(planned, part, ep_rank);
  using Kind = shard::PartCut::Kind;
  entry.shape = cut.slice_shape();
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
    record.sections = aligned.sections;
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

TensorResult unhashed(const Plan& plan, const PlannedTensor& planned) {
  TensorResult record{.source = std::vector<Hash128>(plan.stored_of(planned).size()), .output = {}};
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    std::size_t n = 0;
    for (const PlannedSlice& slice : slices_of(plan, planned, p)) n = std::max(n, slice.hash + 1);
    record.output.emplace_back(n);
  }
  return record;
}

}  // namespace ingot::convert
