#include <algorithm>
#include <array>
#include <numeric>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "convert/plan/band.h"
#include "convert/plan/passes.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "quantize/block_moments.h"

// The passes that give every byte of the output its place.

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::StoredTensor;

namespace {

PlannedPart part_of(formats::Part part, formats::DType dtype, const formats::Shape& shape,
                    const LogicalTensor& tensor) {
  const auto n_bytes = formats::byte_count(dtype, shape);
  if (!n_bytes) throw Error(ErrorCode::kLimit, "its size overflows 64 bits").in_tensor(tensor.name);
  return {.part = part, .dtype = dtype, .n_bytes = *n_bytes};
}

// Codes that are kept, and scales that are taken over, keep their dtypes.
formats::DType dtype_of(const Plan& plan, const PlannedTensor& planned,
                        const formats::PartRow& row) {
  if (!row.keeps_dtype) return row.dtype;
  const auto stored_in = [&](const Checkpoint& from, const LogicalTensor& tensor) {
    const std::uint32_t index = tensor.encoding.stored[row.part];
    return index == formats::StoredParts::kAbsent ? row.dtype : from.stored()[index].dtype;
  };
  const LogicalTensor& tensor = plan.tensor_of(planned);
  if (planned.action == Action::kRewrap) return stored_in(plan.source, tensor);
  if (planned.scales == PlannedTensor::kNone) {
    // Exponents hold only powers of two.
    const bool has_powers = plan.target.encode.fp8_grid == quantize::Fp8Grid::kUe8m0;
    // Next to exponents that are kept, those of changed values are stored so too.
    if (planned.is_changed && planned.to == tensor.encoding.scheme && has_powers &&
        stored_in(plan.source, tensor) == formats::DType::kF8E8M0)
      return formats::DType::kF8E8M0;
    const bool holds_all = row.dtype != formats::DType::kF8E8M0 || has_powers;
    return holds_all ? row.dtype : formats::scheme_facts(planned.to).scale_dtype;
  }
  const Checkpoint& release = *plan.recipe.choices.scales_from;
  return stored_in(release, release.tensors()[planned.scales]);
}

void add_parts(const Plan& plan, PlannedTensor& planned) {
  const LogicalTensor& tensor = plan.tensor_of(planned);
  switch (planned.action) {
    case Action::kCopy:
      tensor.encoding.stored.for_each([&](formats::Part part, std::uint32_t index) {
        const StoredTensor& stored = plan.source.stored()[index];
        planned.parts[planned.n_parts++] = {
            .part = part, .dtype = stored.dtype, .n_bytes = stored.n_bytes};
      });
      break;
    case Action::kCast:
      planned.parts[planned.n_parts++] =
          part_of(formats::Part::kWeight, formats::plain_dtype(planned.to), tensor.shape, tensor);
      break;
    case Action::kRewrap:
    case Action::kQuantize:
      for (const formats::PartRow& row : planned.storage->parts) {
        if (row.is_optional && !has_optional_part(planned, tensor, row.part)) continue;
        planned.parts[planned.n_parts++] =
            part_of(row.part, dtype_of(plan, planned, row),
                    formats::part_shape(row, planned.to, tensor.shape, planned.block), tensor);
      }
      break;
    case Action::kDrop:
      break;
  }
}

// At how many places of files at once a tensor and its neighbours are written: parts of several
// dtypes have places of their own. One where each part has one place.
std::uint64_t targets_of(const Plan& plan, const PlannedTensor& planned) {
  std::uint64_t n = 0;
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    for (const PlannedPlace& place : plan.places_of(planned.parts[p]))
      n += plan.files[place.file].is_here ? plan.files[place.file].members.size() : 0;
  }
  return n <= planned.n_parts ? 1 : n;
}

// Memory for the hashes of slices, twice: with the tensor, and on their way into the journal.
std::uint64_t slice_hashes(const Plan& plan) {
  std::uint64_t n = 0;
  if (!plan.is_sliced()) return n;
  for (const PlannedTensor& planned : plan.tensors)
    n += std::uint64_t{planned.n_parts} * planned.cut.n;
  return 2 * n * sizeof(Hash128);
}

std::uint64_t bytes_of(const Plan& plan, const PartRef& at) {
  const PlannedTensor& planned = plan.tensors[at.tensor];
  return plan.is_sliced()
             ? plan.part_cut(planned, at.part, plan.places[at.place].ep_rank).slice_bytes()
             : planned.parts[at.part].n_bytes;
}

// True if each part begins at a multiple of the size of its elements.
bool is_aligned(const Plan& plan, std::span<const PartRef> parts) {
  std::uint64_t offset = 0;
  return std::ranges::all_of(parts, [&](const PartRef& at) {
    const formats::DType dtype = plan.tensors[at.tensor].parts[at.part].dtype;
    const std::uint64_t begin = std::exchange(offset, offset + bytes_of(plan, at));
    return begin % std::max<std::uint64_t>(1, formats::dtype_bits(dtype) / 8) == 0;
  });
}

// By dtype and name, as the format wants it; or by name, where that leaves every part aligned.
void sort_parts(const Plan& plan, PlannedFile& file) {
  std::vector<std::string> names;
  names.reserve(file.parts.size());
  for (const PartRef& at : file.parts)
    names.push_back(plan.part_name(plan.tensors[at.tensor], at.part));
  std::vector<std::uint32_t> order(file.parts.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto dtype = [&](std::uint32_t at) {
    return plan.tensors[file.parts[at].tensor].parts[file.parts[at].part].dtype;
  };
  const auto sort_by = [&](const auto& before) {
    std::sort(order.begin(), order.end(), before);
    std::vector<PartRef> sorted;
    sorted.reserve(order.size());
    for (const std::uint32_t at : order) sorted.push_back(file.parts[at]);
    return sorted;
  };
  std::vector<PartRef> by_dtype = sort_by([&](std::uint32_t a, std::uint32_t b) {
    return formats::writes_before(dtype(a), names[a], dtype(b), names[b]);
  });
  file.keeps_dtype_order = false;
  if (plan.options.shards.order == TensorOrder::kName) {
    std::vector<PartRef> by_name =
        sort_by([&](std::uint32_t a, std::uint32_t b) { return names[a] < names[b]; });
    file.keeps_dtype_order = !is_aligned(plan, by_name);
    if (!file.keeps_dtype_order) by_dtype = std::move(by_name);
  }
  file.parts = std::move(by_dtype);
}

// Each weight with its scales, in the order of the source. The format allows no holes: parts that
// would move the next ones away from their boundaries wait until such parts make up whole pages, or
// for the end of the file.
void align_parts(const Plan& plan, PlannedFile& file) {
  const std::vector<PartRef> parts = std::exchange(file.parts, {});
  PlannedFile odd;
  std::uint64_t odd_bytes = 0;
  const auto add_odd = [&] {
    sort_parts(plan, odd);
    file.parts.insert(file.parts.end(), odd.parts.begin(), odd.parts.end());
    odd.parts.clear();
  };
  for (const PartRef& at : parts) {
    const std::uint64_t rest = bytes_of(plan, at) % plan.options.shards.align;
    (rest == 0 ? file : odd).parts.push_back(at);
    odd_bytes += rest;
    if (rest != 0 && odd_bytes % plan.options.shards.align == 0) add_odd();
  }
  add_odd();
}

// Places a part at `offset`, and returns where it ends.
std::uint64_t place_part(Plan& plan, const PartRef& at, std::uint64_t offset) {
  plan.places[at.place].offset = offset;
  return offset + bytes_of(plan, at);
}

// Places stored tensors one behind the other with their pieces, and returns where the last ends.
std::uint64_t place_joined(Plan& plan, PlannedFile& file, std::uint64_t offset) {
  std::size_t part = 0;
  for (std::uint32_t i = 0; i < file.joined.size(); ++i) {
    PlannedFile::Joined& joined = file.joined[i];
    joined.offset = offset;
    offset += joined.bytes.size();
    std::uint64_t row = 0;
    for (std::uint32_t n = 0; n < joined.n_parts; ++n) {
      const PartRef& at = file.parts.at(part++);
      plan.places[at.place].joined = i;
      offset = place_part(plan, at, offset);
      if (!joined.is_turned) continue;
      // Its rows are columns there, of which the first begin so.
      plan.places[at.place].offset = joined.offset + row;
      row += bytes_of(plan, at) / joined.spec.shape.at(0);
    }
  }
  INGOT_CHECK(part == file.parts.size());
  return offset;
}

}  // namespace

bool has_optional_part(const PlannedTensor& planned, const LogicalTensor& tensor,
                       formats::Part part) {
  if (part == formats::Part::kZeroPoint && planned.adds_zero_points) return true;
  if (part == formats::Part::kGroupOrder && planned.keeps_group_order) return true;
  const bool is_kept = planned.action == Action::kCopy || planned.action == Action::kRewrap;
  return is_kept && tensor.encoding.stored.has(part);
}

void plan_parts(Plan& plan) {
  const auto leaves_out = functions_of(*plan.options.layout).leaves_out;
  for (PlannedTensor& planned : plan.tensors) {
    add_parts(plan, planned);
    if (leaves_out == nullptr) continue;
    const auto parts = std::span(planned.parts).first(planned.n_parts);
    const auto rest =
        std::stable_partition(parts.begin(), parts.end(),
                              [&](const PlannedPart& part) { return !leaves_out(part.part); });
    planned.n_parts = static_cast<std::uint8_t>(rest - parts.begin());
  }
}

void lay_out_files(Plan& plan) {
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    for (std::uint8_t p = 0; p < plan.tensors[i].n_parts; ++p) {
      const PlannedPart& part = plan.tensors[i].parts[p];
      std::uint32_t n_hashes = 0;
      for (std::uint32_t at = part.first_place; at < part.first_place + part.n_places; ++at) {
        PlannedPlace& place = plan.places[at];
        plan.files[place.file].parts.push_back({.tensor = i, .part = p, .place = at});
        if (place.ep_rank == PlannedPlace::kAllExperts) continue;
        // Shares of a stack follow one another.
        place.first_hash = n_hashes;
        n_hashes += plan.part_cut(plan.tensors[i], p, place.ep_rank).n_distinct();
      }
    }
  }
  const auto join = functions_of(*plan.options.layout).join_parts;
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    PlannedFile& file = plan.files[f];
    const auto sort = plan.options.shards.align > 0 ? align_parts : sort_parts;
    (join != nullptr ? join : sort)(plan, file);
    file.header_bytes = plan.header(f).size();
    file.n_bytes = file.header_bytes;
    if (join != nullptr) {
      file.n_bytes = place_joined(plan, file, file.n_bytes);
    } else {
      for (const PartRef& at : file.parts) file.n_bytes = place_part(plan, at, file.n_bytes);
    }
  }
  const auto n_kept = std::ranges::count(plan.files, true, &PlannedFile::keeps_dtype_order);
  if (n_kept > 0) {
    const auto& first = *std::ranges::find(plan.files, true, &PlannedFile::keeps_dtype_order);
    plan.warnings.push_back(
        fmt::format("{} of {} files keep the order of dtypes and names (first {}): in the order of "
                    "names, elements of a tensor would not begin at a multiple of their size",
                    n_kept, plan.files.size(), first.name));
  }
}

// Execution follows the output files, so that writes are sequential. Where the files are kept, that
// is the order of the source files too; within a file the source is read in name order per dtype,
// as it was written. A fused set has the place of its first tensor.
void order_for_execution(Plan& plan) {
  std::vector<std::uint32_t> order(plan.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto own_key = [&](std::uint32_t i) {
    const PlannedTensor& planned = plan.tensors[i];
    if (planned.n_parts == 0) return std::tuple(true, 0U, std::uint64_t{0}, planned.tensor);
    const PlannedPlace& place = plan.first_place(planned.parts[0]);
    return std::tuple(false, place.file, place.offset, planned.tensor);
  };
  std::vector<std::uint32_t> leader(plan.tensors.size());
  std::iota(leader.begin(), leader.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return own_key(a) < own_key(b); };
  for (const std::vector<std::uint32_t>& set : plan.fused_sets) {
    const std::uint32_t first = *std::min_element(set.begin(), set.end(), before);
    for (const std::uint32_t index : set) leader[index] = first;
  }
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    return std::pair(own_key(leader[a]), own_key(a)) < std::pair(own_key(leader[b]), own_key(b));
  });
  std::vector<std::uint32_t> rank(order.size());
  std::vector<PlannedTensor> sorted;
  sorted.reserve(order.size());
  for (std::uint32_t at = 0; at < order.size(); ++at) {
    rank[order[at]] = at;
    sorted.push_back(plan.tensors[order[at]]);
  }
  plan.tensors = std::move(sorted);
  for (PlannedFile& file : plan.files) {
    for (PartRef& at : file.parts) at.tensor = rank[at.tensor];
  }
  for (std::vector<std::uint32_t>& set : plan.fused_sets) {
    for (std::uint32_t& index : set) index = rank[index];
    std::sort(set.begin(), set.end());
  }
}

void measure_plan(Plan& plan) {
  // In the order of Action.
  static constexpr std::array kCounts = {&PlanCounts::copied, &PlanCounts::rewrapped,
                                         &PlanCounts::cast, &PlanCounts::quantized,
                                         &PlanCounts::dropped};
  const Checkpoint& source = plan.source;
  for (const PlannedTensor& planned : plan.tensors) {
    if (plan.is_read(planned)) {
      for (const std::uint32_t stored : plan.stored_of(planned))
        plan.sizes.bytes_in += source.stored()[stored].n_bytes;
    }
    if (!plan.is_here(planned)) continue;
    ++(plan.counts.*kCounts.at(static_cast<std::size_t>(planned.action)));
    if (planned.is_demoted) ++plan.counts.demoted;
    if (planned.joint_global) ++plan.counts.rescaled;
    if (planned.is_changed) ++plan.counts.changed;
    if (planned.action == Action::kDrop) continue;
    plan.sizes.open_targets = std::max(plan.sizes.open_targets, targets_of(plan, planned));
    if (goes_through_bands(plan.tensor_of(planned), planned)) {
      const BandPlan bands = BandPlan::to_encode(plan.tensor_of(planned), planned.to, planned.block,
                                                 planned.takes_whole_rows(), planned.by_moments);
      // Moments as they are read, and their factors.
      const std::uint64_t moment_bytes =
          planned.by_moments
              ? bands.cols / quantize::kMomentBlock *
                    (quantize::kMomentBlock * quantize::kMomentBlock * sizeof(float) +
                     sizeof(quantize::MomentBlock))
              : 0;
      plan.sizes.band_bytes =
          std::max(plan.sizes.band_bytes, bands.buffer_bytes() + moment_bytes +
                                              change_bytes(plan.changes_of(planned), bands));
    }
  }
  for (const PlannedFile& file : plan.files)
    plan.sizes.bytes_out += file.is_here ? file.n_bytes * file.members.size() : 0;

  std::uint64_t names = 0;
  for (const StoredTensor& stored : source.stored()) {
    names += stored.name.capacity() + stored.shape.capacity() * sizeof(std::uint64_t);
  }
  // Stored and logical tables, the plan's, per-tensor records of the run (four hashes and their
  // names), and the allocator's slack on top.
  plan.sizes.table_bytes =
      2 * names + source.stored().size() * (sizeof(StoredTensor) + 64) +
      source.tensors().size() * (sizeof(LogicalTensor) + sizeof(PlannedTensor) + 512) +
      plan.places.size() * (sizeof(PlannedPlace) + sizeof(PartRef)) + slice_hashes(plan);
  // The changes, and the tensors that they are read from.
  for (const auto& [index, changes] : plan.changes)
    plan.sizes.table_bytes += changes.size() * (sizeof(formats::ValueChange) + 512);
}

const LayoutFunctions& functions_of(const formats::Layout& layout) {
  // In the order of formats::LayoutId.
  static constexpr std::array kRows = {&kHubLayout, &kRanksLayout, &kDeepseekMpLayout,
                                       &kShardedStateLayout};
  return *kRows.at(static_cast<std::size_t>(layout.id));
}

void set_places(Plan& plan, PlannedPart& part, std::span<const PlannedPlace> places) {
  part.first_place = static_cast<std::uint32_t>(plan.places.size());
  part.n_places = static_cast<std::uint32_t>(places.size());
  plan.places.insert(plan.places.end(), places.begin(), places.end());
}

PlannedFile& add_file(Plan& plan, std::string name) {
  PlannedFile& file = plan.files.emplace_back();
  file.members.push_back({.path = name, .ranks = {}});
  file.name = std::move(name);
  return file;
}

std::vector<std::uint32_t> ep_ranks_of(const Plan& plan, const PlannedTensor& planned) {
  const shard::Slicing& slicing = *plan.slicing;
  const formats::LogicalTensor& tensor = plan.tensor_of(planned);
  if (planned.cut.owner != shard::Owner::kExpert || slicing.topology.ep == 1) return {};
  const std::uint32_t layer = tensor.layer.value_or(0);
  if (tensor.expert) return slicing.experts.ranks_of(layer, *tensor.expert);
  const bool is_stack = is_expert_stack(role_of(tensor));
  if (!is_stack) {  // the shared expert, which has a slot
    const auto n_experts = static_cast<std::uint32_t>(plan.source.config().n_routed_experts);
    return slicing.experts.ranks_of(layer, n_experts);
  }
  std::vector<std::uint32_t> all(slicing.topology.ep);
  std::iota(all.begin(), all.end(), 0U);
  return all;
}

void assign_files(Plan& plan) {
  const auto& max_bytes = plan.options.shards.max_shard_bytes;
  if (plan.is_sliced() && plan.options.shards.n_files) {
    throw Error(ErrorCode::kInvalidArgument,
                "--files deals the tensors of an output that is not cut for ranks (give "
                "--max-shard-size)");
  }
  if (plan.is_sliced() && max_bytes) plan.unsliced_files = deal_by_size(plan, *max_bytes);
  functions_of(*plan.options.layout).assign_files(plan);
  for (PlannedFile& file : plan.files) {
    file.first_member = plan.n_members;
    plan.n_members += static_cast<std::uint32_t>(file.members.size());
  }
}

}  // namespace ingot::convert
