#include "convert/plan/plan.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "convert/plan/passes.h"
#include "engines/limits.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/storage/encoding.h"
#include "quantize/scheme.h"

namespace ingot::convert {

using formats::LogicalTensor;

std::string_view action_name(Action action) {
  static constexpr std::array<std::string_view, 5> kNames = {"copy", "rewrap", "cast", "quantize",
                                                             "drop"};
  return kNames.at(static_cast<std::size_t>(action));
}

namespace {

// How the target dialect stores a part.
const formats::PartRow& row_of(const PlannedTensor& planned, std::size_t part) {
  const formats::PartRow* row = formats::find_part_row(*planned.storage, planned.parts[part].part);
  INGOT_CHECK(row != nullptr);
  return *row;
}

}  // namespace

std::vector<formats::TensorSpec> header_tensors(const Plan& plan, const PlannedFile& row) {
  std::vector<formats::TensorSpec> specs;
  for (const PlannedFile::Joined& joined : row.joined) specs.push_back(joined.spec);
  if (!row.joined.empty()) return specs;
  specs.reserve(row.parts.size());
  for (const PartRef& at : row.parts) {
    const PlannedTensor& planned = plan.tensors[at.tensor];
    specs.push_back(
        {.name = plan.part_name(planned, at.part),
         .dtype = planned.parts[at.part].dtype,
         .shape = plan.is_sliced()
                      ? plan.part_cut(planned, at.part, plan.places[at.place].ep_rank).slice_shape()
                      : plan.stored_shape(planned, at.part)});
  }
  return specs;
}

bool goes_through_bands(const LogicalTensor& tensor, const PlannedTensor& planned) {
  if (planned.action == Action::kQuantize) return true;
  return planned.action == Action::kCast &&
         (planned.is_changed ||
          quantize::find_transcode(tensor.encoding.scheme, planned.to) == nullptr);
}

std::span<const formats::ValueChange> Plan::changes_of(const PlannedTensor& planned) const {
  const auto found = changes.find(planned.tensor);
  return found == changes.end() ? std::span<const formats::ValueChange>() : found->second;
}

std::vector<std::uint32_t> Plan::stored_of(const PlannedTensor& planned) const {
  std::vector<std::uint32_t> stored;
  if (planned.action == Action::kDrop) return stored;
  tensor_of(planned).encoding.stored.for_each(
      [&](formats::Part, std::uint32_t index) { stored.push_back(index); });
  return stored;
}

bool Plan::is_here(const PlannedTensor& planned) const {
  if (!options.part) return true;
  if (planned.n_parts == 0) return options.part->index == 0;
  return std::any_of(
      planned.parts.begin(), planned.parts.begin() + planned.n_parts, [&](const PlannedPart& part) {
        return std::ranges::any_of(
            places_of(part), [&](const PlannedPlace& place) { return files[place.file].is_here; });
      });
}

bool Plan::is_read(const PlannedTensor& planned) const {
  if (planned.action == Action::kDrop) return false;
  if (planned.fused_set == PlannedTensor::kNone) return is_here(planned);
  return std::ranges::any_of(fused_sets[planned.fused_set],
                             [&](std::uint32_t index) { return is_here(tensors[index]); });
}

std::uint32_t Plan::n_members_here() const {
  std::uint32_t n = 0;
  for (const PlannedFile& file : files)
    n += file.is_here ? static_cast<std::uint32_t>(file.members.size()) : 0;
  return n;
}

std::set<std::uint32_t> Plan::source_files_of(const PlannedTensor& planned) const {
  std::set<std::uint32_t> of_tensor;
  for (const std::uint32_t stored : stored_of(planned))
    of_tensor.insert(source.stored()[stored].file);
  return of_tensor;
}

bool Plan::is_copy() const {
  return recipe.choices.kv_scales == nullptr && recipe.choices.composed == nullptr &&
         std::ranges::all_of(tensors, [](const PlannedTensor& planned) {
           return planned.action == Action::kCopy && !planned.joint_global;
         });
}

std::string Plan::hub_name(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  if (planned.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[planned.parts[part].part]].name;
  return planned.storage == nullptr ? tensor.name
                                    : formats::part_name(row_of(planned, part), tensor.name);
}

std::string Plan::part_name(const PlannedTensor& planned, std::size_t part) const {
  const auto spell = functions_of(*options.layout).stored_name;
  std::string name = hub_name(planned, part);
  return spell == nullptr ? name : spell(name, source.config());
}

formats::Shape Plan::part_shape(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  if (planned.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[planned.parts[part].part]].shape;
  if (planned.storage == nullptr) return tensor.shape;
  const formats::PartRow& row = row_of(planned, part);
  if (engines::is_joined_number(row.shape, tensor.rule)) return {};
  return formats::part_shape(row, planned.to, tensor.shape, planned.block);
}

formats::Shape Plan::stored_shape(const PlannedTensor& planned, std::size_t part) const {
  formats::Shape shape = part_shape(planned, part);
  if (formats::scheme_facts(planned.to).quantized) return shape;
  return formats::stored_shape(tensor_of(planned).rule, std::move(shape));
}

std::vector<std::uint32_t> Plan::reread(const PlannedTensor& planned) const {
  std::vector<std::uint32_t> stored = stored_of(planned);
  if (planned.fused_set == PlannedTensor::kNone)
    std::erase(stored, tensor_of(planned).encoding.stored.weight());
  return stored;
}

std::string Plan::header(std::size_t file) const {
  std::string text = formats::safetensors_header_text(header_tensors(*this, files[file]));
  text.resize(round_up(text.size(), options.shards.data_boundary()), ' ');
  const std::uint64_t n_bytes = text.size() - sizeof(n_bytes);
  if (n_bytes > formats::kMaxHeaderBytes) {
    throw Error(ErrorCode::kLimit, "its header of {} bytes is beyond the format's limit", n_bytes)
        .in_file(files[file].name);
  }
  std::memcpy(text.data(), &n_bytes, sizeof(n_bytes));
  return text;
}

std::vector<Plan::KnownBytes> Plan::known_bytes(std::size_t file) const {
  std::vector<KnownBytes> known = {{.offset = 0, .bytes = header(file)}};
  for (const PlannedFile::Joined& joined : files[file].joined) {
    if (joined.is_constant()) known.push_back({.offset = joined.offset, .bytes = joined.bytes});
  }
  return known;
}

Hash128 plan_hash(const Plan& plan) {
  TensorHasher hasher;
  const auto add = [&](std::string_view text) {
    const std::uint64_t size = text.size();
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  for (std::size_t file = 0; file < plan.files.size(); ++file) {
    for (const PlannedFile::Member& member : plan.files[file].members) add(member.path);
    for (const Plan::KnownBytes& known : plan.known_bytes(file)) add(known.bytes);
  }
  add(plan.json.config);
  add(plan.json.whole_config);
  add(plan.json.index);
  add(plan.json.description);
  return hasher.finish();
}

shard::AlignedPart Plan::aligned(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  const formats::Shape shape = part_shape(planned, part);
  if (planned.alignment == shard::Alignment{})
    return {.shape = shape, .weight = tensor.shape, .sections = planned.padded_sections()};
  return shard::aligned_part(planned.parts[part].part, planned.to, shape, tensor.shape,
                             scale_block_of(tensor, planned), planned.alignment,
                             planned.padded_sections());
}

shard::PartCut Plan::part_cut(const PlannedTensor& planned, std::size_t part,
                              std::uint32_t ep_rank) const {
  const LogicalTensor& tensor = tensor_of(planned);
  const PlannedPart& whole = planned.parts[part];
  const shard::AlignedPart as_cut = aligned(planned, part);
  const bool is_retiled = planned.alignment.block[0] != 0;
  const shard::PartCut cut(whole.part, whole.dtype, as_cut.shape, planned.to, as_cut.weight,
                           is_retiled ? planned.alignment.block : scale_block_of(tensor, planned),
                           planned.cut);
  if (ep_rank == PlannedPlace::kAllExperts) return cut;
  const auto experts = slicing->experts.experts_of(*tensor.layer, ep_rank);
  return cut.of_matrices({experts.begin(), experts.end()});
}

const std::string& Plan::member_path(std::uint32_t member) const {
  const auto file = std::partition_point(files.begin(), files.end(), [&](const PlannedFile& at) {
    return at.first_member + at.members.size() <= member;
  });
  return file->members[member - file->first_member].path;
}

namespace {

// The slices of `at` in so many members of its file.
void append_slices(const Plan& plan, const PlannedTensor& planned, const PartRef& at,
                   std::uint32_t first_member, std::uint32_t n_members,
                   std::vector<PlannedSlice>& slices) {
  const PlannedPlace& place = plan.places[at.place];
  std::uint64_t n_bytes = planned.parts[at.part].n_bytes;
  bool are_distinct = false;
  formats::TurnedRows turned;
  if (plan.is_sliced()) {
    const shard::PartCut cut = plan.part_cut(planned, at.part, place.ep_rank);
    n_bytes = cut.slice_bytes();
    are_distinct = cut.n_distinct() > 1;
    turned = turned_rows(plan, place, cut);
  }
  for (std::uint32_t member = first_member; member < first_member + n_members; ++member) {
    const std::uint32_t slice = place.first_slice + member;
    slices.push_back({.member = plan.files[place.file].first_member + member,
                      .offset = place.offset,
                      .n_bytes = n_bytes,
                      .hash = place.first_hash + (are_distinct ? slice : 0),
                      .place = at.place,
                      .slice = slice,
                      .turned = turned});
  }
}

}  // namespace

formats::TurnedRows turned_rows(const Plan& plan, const PlannedPlace& place,
                                const shard::PartCut& cut) {
  if (place.joined == PlannedPlace::kOwn) return {};
  const PlannedFile::Joined& joined = plan.files[place.file].joined[place.joined];
  if (!joined.is_turned) return {};
  const formats::Shape& shape = cut.slice_shape();
  return {.rows = shape.at(0), .cols = shape.at(1), .stride = joined.spec.shape.at(1)};
}

PlannedSlice slice_at(const Plan& plan, const PlannedTensor& planned, const PartRef& at,
                      std::uint32_t member) {
  std::vector<PlannedSlice> slices;
  append_slices(plan, planned, at, member, 1, slices);
  return slices.front();
}

std::vector<PlannedSlice> slices_of(const Plan& plan, const PlannedTensor& planned, std::size_t p) {
  const PlannedPart& part = planned.parts[p];
  std::vector<PlannedSlice> all;
  for (std::uint32_t i = part.first_place; i < part.first_place + part.n_places; ++i) {
    const auto n_members =
        static_cast<std::uint32_t>(plan.files[plan.places[i].file].members.size());
    append_slices(plan, planned, {.part = static_cast<std::uint8_t>(p), .place = i}, 0, n_members,
                  all);
  }
  return all;
}

std::array<std::uint64_t, 2> scale_block_of(const LogicalTensor& tensor,
                                            const PlannedTensor& planned) {
  if (planned.action == Action::kCast) return {0, 0};
  std::array<std::uint64_t, 2> block =
      planned.action == Action::kQuantize
          ? planned.block
          : std::array{tensor.encoding.block_rows, tensor.encoding.block_cols};
  if (formats::scheme_facts(planned.to).chooses_cols)
    block[1] = formats::stated_group_cols(block[1], tensor.shape.back());
  return block;
}

formats::Shape Plan::slice_shape(const PlannedTensor& planned) const {
  if (!is_sliced()) return tensor_of(planned).shape;
  INGOT_CHECK(planned.n_parts > 0 && planned.parts[0].part == formats::Part::kWeight);
  formats::Shape shape = part_cut(planned, 0).slice_shape();
  if (!shape.empty())
    shape.back() = formats::packing(planned.to, planned.parts[0].dtype).codes_of(shape.back());
  return shape;
}

std::string SizedFiles::name_of(std::uint32_t file) const {
  return formats::shard_file_name(std::uint64_t{file} + 1, n_files);
}

std::string unsliced_file(const Plan& plan, const PlannedTensor& planned, formats::Part part) {
  if (const auto& sized = plan.unsliced_files)
    return sized->name_of(sized->file_of.at(planned.tensor));
  const formats::Checkpoint& source = plan.source;
  const formats::StoredParts& stored = plan.tensor_of(planned).encoding.stored;
  const std::uint32_t index = stored.has(part) ? stored[part] : stored.weight();
  return source.is_whole() ? source.files()[source.stored()[index].file].name
                           : source.home_file(index);
}

using formats::CodeKind;
using formats::DType;
using formats::Part;
using formats::SchemeFacts;
using formats::SchemeId;

namespace {

bool has_power_of_two_scales(const Plan& plan, const LogicalTensor& tensor) {
  if (formats::scheme_facts(tensor.encoding.scheme).scale_dtype == DType::kF8E8M0) return true;
  return tensor.encoding.stored.has(Part::kScale) &&
         plan.source.stored()[tensor.encoding.stored[Part::kScale]].dtype == DType::kF8E8M0;
}

// Decoded values are F32. BF16 holds a code times a power of two unless the product is below what
// it counts in, 2^-133: E2M1 codes go down to 2^-1, which no scale makes so small.
bool is_exact_cast(const Plan& plan, const LogicalTensor& tensor, SchemeId to) {
  const SchemeFacts& from = formats::scheme_facts(tensor.encoding.scheme);
  return to == SchemeId::kF32 || to == from.id ||
         (to == SchemeId::kBf16 && from.code == CodeKind::kE2m1 &&
          has_power_of_two_scales(plan, tensor));
}

// E4M3 holds every E2M1 code, and both have a power of two for 32 values. Scales that are given
// serve other values.
bool is_exact_encoding(const LogicalTensor& tensor, const PlannedTensor& planned) {
  const SchemeFacts& to = formats::scheme_facts(planned.to);
  return planned.scales == PlannedTensor::kNone && tensor.encoding.scheme == SchemeId::kMxfp4 &&
         to.code == CodeKind::kE4m3 && to.scale_dtype == DType::kF8E8M0;
}

// A global scale that divides in one dialect and multiplies in the other becomes its reciprocal.
bool turns_global(const LogicalTensor& tensor, const PlannedTensor& planned) {
  return tensor.encoding.stored.has(Part::kGlobal) && planned.storage != nullptr &&
         tensor.encoding.global_divides != planned.storage->global_divides;
}

}  // namespace

bool is_exact_by_rule(const Plan& plan, const PlannedTensor& planned) {
  if (planned.is_changed) return false;
  const LogicalTensor& tensor = plan.tensor_of(planned);
  const bool is_exact_before =
      plan.target.via != Via::kBf16 || is_exact_cast(plan, tensor, SchemeId::kBf16);
  switch (planned.action) {
    case Action::kCast:
      return is_exact_before && is_exact_cast(plan, tensor, planned.to);
    case Action::kQuantize:
      return is_exact_before && is_exact_encoding(tensor, planned);
    case Action::kRewrap:
      return !turns_global(tensor, planned) && planned.find(Part::kDeqScale) == nullptr;
    default:
      return !planned.joint_global;
  }
}

RolesByExactness roles_by_exactness(const Plan& plan) {
  RolesByExactness roles;
  for (const PlannedTensor& planned : plan.tensors) {
    if (planned.action == Action::kDrop) continue;
    const LogicalTensor& tensor = plan.tensor_of(planned);
    roles[{is_exact_by_rule(plan, planned), tensor.encoding.scheme, planned.to}].insert(
        formats::role_name(role_of(tensor)));
  }
  return roles;
}

}  // namespace ingot::convert
