#include <algorithm>

#include "convert/plan/plan.h"

// Which slices of a part stand where: derived from the plan, whenever they are asked for.

namespace ingot::convert {

using formats::LogicalTensor;

FittedPart Plan::fitted(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  const formats::Shape shape = part_shape(planned, part);
  if (planned.fit == shard::Fit{}) return {.shape = shape, .sections = planned.cut.sections};
  return fitted_part(planned.parts[part].part, planned.to, shape, tensor.shape,
                     scale_block_of(tensor, planned), planned.fit, planned.cut.sections);
}

shard::PartDeal Plan::deal(const PlannedTensor& planned, std::size_t part,
                           std::uint32_t ep_rank) const {
  const LogicalTensor& tensor = tensor_of(planned);
  const PlannedPart& whole = planned.parts[part];
  formats::Shape weight = tensor.shape;
  if (planned.fit.padded[0] != 0)
    weight[weight.size() >= 2 ? weight.size() - 2 : 0] =
        planned.fit.padded[0] * planned.cut.sections;
  if (planned.fit.padded[1] != 0) weight.back() = planned.fit.padded[1];
  const bool is_retiled = planned.fit.block[0] != 0;
  const shard::PartDeal deal(
      whole.part, whole.dtype, fitted(planned, part).shape, planned.to, weight,
      is_retiled ? planned.fit.block : scale_block_of(tensor, planned), planned.cut);
  if (ep_rank == PlannedPlace::kAllExperts) return deal;
  const auto experts = slicing->experts.experts_of(*tensor.layer, ep_rank);
  return deal.of_matrices({experts.begin(), experts.end()});
}

const std::string& Plan::member_path(std::uint32_t member) const {
  const auto file = std::partition_point(files.begin(), files.end(), [&](const PlannedFile& at) {
    return at.first_member + at.members.size() <= member;
  });
  return file->members[member - file->first_member].path;
}

PlannedSlice slice_at(const Plan& plan, const PlannedTensor& planned, const PartRef& at,
                      std::uint32_t member) {
  const PlannedPlace& place = plan.places[at.place];
  PlannedSlice slice{.member = plan.files[place.file].first_member + member,
                     .offset = place.offset,
                     .n_bytes = planned.parts[at.part].n_bytes,
                     .hash = place.first_hash,
                     .place = at.place,
                     .slice = place.first_slice + member};
  if (!plan.is_sliced()) return slice;
  const shard::PartDeal deal = plan.deal(planned, at.part, place.ep_rank);
  slice.n_bytes = deal.slice_bytes();
  if (deal.n_distinct() > 1) slice.hash += slice.slice;
  return slice;
}

std::vector<PlannedSlice> slices_of(const Plan& plan, const PlannedTensor& planned, std::size_t p) {
  const PlannedPart& part = planned.parts[p];
  std::vector<PlannedSlice> all;
  for (std::uint32_t i = part.first_place; i < part.first_place + part.n_places; ++i) {
    const PartRef at{.part = static_cast<std::uint8_t>(p), .place = i};
    const std::size_t n_members = plan.files[plan.places[i].file].members.size();
    for (std::uint32_t m = 0; m < n_members; ++m) all.push_back(slice_at(plan, planned, at, m));
  }
  return all;
}

std::array<std::uint64_t, 2> scale_block_of(const LogicalTensor& tensor,
                                            const PlannedTensor& planned) {
  if (planned.action == Action::kQuantize) return planned.block;
  if (planned.action == Action::kCast) return {0, 0};
  return {tensor.encoding.block_rows, tensor.encoding.block_cols};
}

std::string unsliced_file(const Plan& plan, const PlannedTensor& planned, formats::Part part) {
  const formats::Checkpoint& source = plan.source;
  const formats::StoredParts& stored = plan.tensor_of(planned).encoding.stored;
  const std::uint32_t index = stored.has(part) ? stored[part] : stored.weight();
  return source.is_whole() ? source.files()[source.stored()[index].file].name
                           : source.home_file(index);
}

}  // namespace ingot::convert
