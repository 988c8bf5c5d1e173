#include <algorithm>

#include "convert/plan/plan.h"

// Which slices of a part stand where: derived from the plan, whenever they are asked for.

namespace ingot::convert {

using formats::LogicalTensor;
using formats::TensorSource;

FittedPart Plan::fitted(const TensorSource& source, const PlannedTensor& item,
                        std::size_t part) const {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  const formats::Shape shape = part_shape(source, item, part);
  if (item.fit == shard::Fit{}) return {.shape = shape, .sections = item.cut.sections};
  return fitted_part(item.parts[part].part, item.to, shape, tensor.shape,
                     scale_block_of(tensor, item), item.fit, item.cut.sections);
}

shard::PartDeal Plan::deal(const TensorSource& source, const PlannedTensor& item, std::size_t part,
                           std::uint32_t ep_rank) const {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  const PlannedPart& planned = item.parts[part];
  formats::Shape weight = tensor.shape;
  if (item.fit.padded[0] != 0)
    weight[weight.size() >= 2 ? weight.size() - 2 : 0] = item.fit.padded[0] * item.cut.sections;
  if (item.fit.padded[1] != 0) weight.back() = item.fit.padded[1];
  const bool is_retiled = item.fit.block[0] != 0;
  const shard::PartDeal deal(planned.part, planned.dtype, fitted(source, item, part).shape, item.to,
                             weight, is_retiled ? item.fit.block : scale_block_of(tensor, item),
                             item.cut);
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

namespace {

// The slice that the first member of a place holds, and how far the next ones' hashes are apart.
struct PlaceSlices {
  PlannedSlice first;
  std::size_t hash_step = 0;
  std::size_t n_hashes = 1;
};

PlaceSlices slices_at(const Plan& plan, const TensorSource& source, const PlannedTensor& planned,
                      std::size_t p, std::uint32_t i) {
  const PlannedPlace& place = plan.places[i];
  PlaceSlices at{.first = {.member = plan.files[place.file].first_member,
                           .offset = place.offset,
                           .n_bytes = planned.parts[p].n_bytes,
                           .place = i,
                           .slice = place.first_slice}};
  if (!plan.is_sliced()) return at;
  const shard::PartDeal deal = plan.deal(source, planned, p, place.ep_rank);
  at.first.n_bytes = deal.slice_bytes();
  if (deal.kind() == shard::PartDeal::Kind::kWhole) return at;
  at.first.hash = place.first_slice;
  at.hash_step = 1;
  at.n_hashes = deal.n_slices();
  return at;
}

}  // namespace

PlannedSlice slice_at(const Plan& plan, const TensorSource& source, const PlannedTensor& planned,
                      const PartRef& at, std::uint32_t member) {
  const PlannedPart& part = planned.parts[at.part];
  const PlaceSlices slices = slices_at(plan, source, planned, at.part, at.place);
  PlannedSlice slice = slices.first;
  slice.member += member;
  slice.slice += member;
  slice.hash += member * slices.hash_step;
  // Shares of a stack follow one another.
  if (plan.places[at.place].ep_rank != PlannedPlace::kAllExperts) {
    for (std::uint32_t i = part.first_place; i < at.place; ++i)
      slice.hash += slices_at(plan, source, planned, at.part, i).n_hashes;
  }
  return slice;
}

std::vector<PlannedSlice> slices_of(const Plan& plan, const TensorSource& source,
                                    const PlannedTensor& planned, std::size_t p) {
  const PlannedPart& part = planned.parts[p];
  std::vector<PlannedSlice> all;
  std::size_t shares = 0;
  for (std::uint32_t i = part.first_place; i < part.first_place + part.n_places; ++i) {
    const PlaceSlices slices = slices_at(plan, source, planned, p, i);
    const bool is_share = plan.places[i].ep_rank != PlannedPlace::kAllExperts;
    const std::size_t n_members = plan.files[plan.places[i].file].members.size();
    for (std::uint32_t m = 0; m < n_members; ++m) {
      PlannedSlice& slice = all.emplace_back(slices.first);
      slice.member += m;
      slice.slice += m;
      slice.hash += m * slices.hash_step + (is_share ? shares : 0);
    }
    shares += slices.n_hashes;
  }
  return all;
}

std::array<std::uint64_t, 2> scale_block_of(const LogicalTensor& tensor,
                                            const PlannedTensor& item) {
  if (item.action == Action::kQuantize) return item.block;
  if (item.action == Action::kCast) return {0, 0};
  return {tensor.encoding.block_rows, tensor.encoding.block_cols};
}

std::string unsliced_file(const formats::Checkpoint& source, const PlannedTensor& planned,
                          formats::Part part) {
  const formats::StoredParts& stored = source.tensors()[planned.tensor].encoding.stored;
  const std::uint32_t index = stored.has(part) ? stored[part] : stored.weight();
  return source.is_whole() ? source.files()[source.stored()[index].file].name
                           : source.home_file(index);
}

}  // namespace ingot::convert
