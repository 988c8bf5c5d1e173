#include "convert/plan/plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "convert/plan/band.h"
#include "convert/plan/deal_files.h"
#include "convert/plan/decide.h"
#include "convert/plan/derived_json.h"
#include "convert/plan/idle_options.h"
#include "convert/plan/side_files.h"
#include "convert/plan/slice_plan.h"
#include "formats/base/checked.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/engine_limits.h"
#include "formats/records/native_names.h"
#include "quantize/scheme.h"
#include "shard/join/source.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::SchemeId;
using formats::StoredTensor;
using formats::TensorSource;

namespace {

PlannedPart part_of(formats::Part part, formats::DType dtype, const formats::Shape& shape,
                    const LogicalTensor& tensor) {
  const auto n_bytes = formats::byte_count(dtype, shape);
  if (!n_bytes) throw Error(ErrorCode::kLimit, "its size overflows 64 bits").in_tensor(tensor.name);
  return {.part = part, .dtype = dtype, .n_bytes = *n_bytes};
}

void plan_parts(const Checkpoint& source, PlannedTensor& item) {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  switch (item.action) {
    case Action::kCopy:
      tensor.encoding.stored.for_each([&](formats::Part part, std::uint32_t index) {
        const StoredTensor& stored = source.stored()[index];
        item.parts[item.n_parts++] = {
            .part = part, .dtype = stored.dtype, .n_bytes = stored.n_bytes};
      });
      break;
    case Action::kCast:
      item.parts[item.n_parts++] =
          part_of(formats::Part::kWeight, formats::plain_dtype(item.to), tensor.shape, tensor);
      break;
    case Action::kRewrap:
    case Action::kQuantize:
      for (const formats::PartSpelling& row : item.spelling->parts) {
        item.parts[item.n_parts++] =
            part_of(row.part, row.dtype,
                    formats::part_shape(row.shape, item.to, tensor.shape, item.block), tensor);
      }
      break;
    case Action::kDrop:
      break;
  }
}

// Fixes order, offsets, header sizes and file sizes; the layout of docs/formats.md, "Writing".
void lay_out(const Checkpoint& source, Plan& plan) {
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    for (std::uint8_t p = 0; p < plan.tensors[i].n_parts; ++p) {
      const PlannedPart& part = plan.tensors[i].parts[p];
      for (std::uint32_t place = part.first_place; place < part.first_place + part.n_places;
           ++place)
        plan.files[plan.places[place].file].parts.push_back(
            {.tensor = i, .part = p, .place = place});
    }
  }
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    PlannedFile& file = plan.files[f];
    std::vector<std::string> names;
    names.reserve(file.parts.size());
    for (const PartAt& at : file.parts)
      names.push_back(plan.part_name(source, plan.tensors[at.tensor], at.part));
    std::vector<std::uint32_t> order(file.parts.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto dtype = [&](std::uint32_t at) {
      return plan.tensors[file.parts[at].tensor].parts[file.parts[at].part].dtype;
    };
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return formats::writes_before(dtype(a), names[a], dtype(b), names[b]);
    });
    std::vector<PartAt> sorted;
    sorted.reserve(order.size());
    for (const std::uint32_t at : order) sorted.push_back(file.parts[at]);
    file.parts = std::move(sorted);
    file.header_bytes = plan.header(source, f).size();
    std::uint64_t offset = file.header_bytes;
    for (const PartAt& at : file.parts) {
      const PlannedTensor& item = plan.tensors[at.tensor];
      PlannedPlace& place = plan.places[at.place];
      place.offset = offset;
      offset += plan.is_sliced() ? plan.deal(source, item, at.part, place.ep_rank).slice_bytes()
                                 : item.parts[at.part].n_bytes;
    }
    file.n_bytes = offset;
  }
}

// At how many places of files at once a tensor and its neighbours are written: parts of several
// dtypes stand apart. One where each part has one place.
std::uint64_t targets_of(const Plan& plan, const PlannedTensor& item) {
  std::uint64_t n = 0;
  for (std::size_t p = 0; p < item.n_parts; ++p) {
    for (const PlannedPlace& place : plan.places_of(item.parts[p]))
      n += plan.files[place.file].members.size();
  }
  return n == item.n_parts ? 1 : n;
}

// Execution follows the output files, so that writes are sequential. Where the files are kept, that
// is the order of the source files too; within a file the source is read in name order per dtype,
// as it was written. A group stands where its first member would.
void order_for_execution(Plan& plan) {
  std::vector<std::uint32_t> order(plan.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto own_key = [&](std::uint32_t i) {
    const PlannedTensor& item = plan.tensors[i];
    if (item.n_parts == 0) return std::tuple(true, 0U, std::uint64_t{0}, item.tensor);
    const PlannedPlace& place = plan.first_place(item.parts[0]);
    return std::tuple(false, place.file, place.offset, item.tensor);
  };
  std::vector<std::uint32_t> leader(plan.tensors.size());
  std::iota(leader.begin(), leader.end(), 0U);
  const auto before = [&](std::uint32_t a, std::uint32_t b) { return own_key(a) < own_key(b); };
  for (const std::vector<std::uint32_t>& group : plan.groups) {
    const std::uint32_t first = *std::min_element(group.begin(), group.end(), before);
    for (const std::uint32_t member : group) leader[member] = first;
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
    for (PartAt& at : file.parts) at.tensor = rank[at.tensor];
  }
  for (std::vector<std::uint32_t>& group : plan.groups) {
    for (std::uint32_t& member : group) member = rank[member];
    std::sort(group.begin(), group.end());
  }
}

// Memory for the hashes of slices, twice: with the item, and on their way into the journal.
std::uint64_t slice_hashes(const Plan& plan) {
  std::uint64_t n = 0;
  if (!plan.is_sliced()) return n;
  for (const PlannedTensor& item : plan.tensors) n += std::uint64_t{item.n_parts} * item.cut.n;
  return 2 * n * sizeof(Hash128);
}

void count(const Checkpoint& source, Plan& plan) {
  for (const PlannedTensor& item : plan.tensors) {
    switch (item.action) {
      case Action::kCopy:
        ++plan.n_copied;
        break;
      case Action::kRewrap:
        ++plan.n_rewrapped;
        break;
      case Action::kCast:
        ++plan.n_cast;
        break;
      case Action::kQuantize:
        ++plan.n_quantized;
        break;
      case Action::kDrop:
        ++plan.n_dropped;
        break;
    }
    if (item.is_demoted) ++plan.n_demoted;
    if (item.action == Action::kDrop) continue;
    const LogicalTensor& tensor = source.tensors()[item.tensor];
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t stored) {
      plan.bytes_in += source.stored()[stored].n_bytes;
    });
    plan.open_targets = std::max(plan.open_targets, targets_of(plan, item));
    if (goes_through_bands(tensor, item)) {
      plan.band_bytes =
          std::max(plan.band_bytes, BandShape(tensor, item.to, item.block).buffer_bytes());
    }
  }
  for (const PlannedFile& file : plan.files) plan.bytes_out += file.n_bytes * file.members.size();

  std::uint64_t names = 0;
  for (const StoredTensor& stored : source.stored()) {
    names += stored.name.capacity() + stored.shape.capacity() * sizeof(std::uint64_t);
  }
  // Stored and logical tables, the plan's, per-item records of the run (four hashes and their
  // names), and the allocator's slack on top.
  plan.table_bytes =
      2 * names + source.stored().size() * (sizeof(StoredTensor) + 64) +
      source.tensors().size() * (sizeof(LogicalTensor) + sizeof(PlannedTensor) + 512) +
      plan.places.size() * (sizeof(PlannedPlace) + sizeof(PartAt)) + slice_hashes(plan);
}

}  // namespace

std::string_view action_name(Action action) {
  switch (action) {
    case Action::kCopy:
      return "copy";
    case Action::kRewrap:
      return "rewrap";
    case Action::kCast:
      return "cast";
    case Action::kQuantize:
      return "quantize";
    case Action::kDrop:
      return "drop";
  }
  return "";
}

bool goes_through_bands(const LogicalTensor& tensor, const PlannedTensor& planned) {
  if (planned.action == Action::kQuantize) return true;
  return planned.action == Action::kCast &&
         quantize::find_transcode(tensor.encoding.scheme, planned.to) == nullptr;
}

std::string Plan::part_name(const TensorSource& source, const PlannedTensor& item,
                            std::size_t part) const {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  std::string name;
  if (item.action == Action::kCopy) {
    name = source.stored()[tensor.encoding.stored[item.parts[part].part]].name;
  } else {
    name = item.spelling == nullptr ? tensor.name
                                    : formats::part_name(item.spelling->parts[part], tensor.name);
  }
  if (layout->name != "deepseek-mp") return name;
  const auto native = formats::native_name(name, source.config());
  INGOT_CHECK(native.has_value());
  return *native;
}

formats::Shape Plan::part_shape(const TensorSource& source, const PlannedTensor& item,
                                std::size_t part) const {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  if (item.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[item.parts[part].part]].shape;
  if (item.spelling == nullptr) return tensor.shape;
  const formats::PartShape spelled = item.spelling->parts[part].shape;
  if (formats::is_joined_number(spelled, tensor.rule)) return {};
  return formats::part_shape(spelled, item.to, tensor.shape, item.block);
}

std::uint64_t Plan::group_bytes(const TensorSource& source, std::size_t group) const {
  std::uint64_t n_bytes = 0;
  for (const std::uint32_t member : groups[group]) {
    const LogicalTensor& tensor = source.tensors()[tensors[member].tensor];
    n_bytes += source.stored()[tensor.encoding.stored.weight()].n_bytes;
  }
  return n_bytes;
}

std::string Plan::header(const TensorSource& source, std::size_t file) const {
  std::vector<formats::TensorSpec> specs;
  specs.reserve(files[file].parts.size());
  for (const PartAt& at : files[file].parts) {
    const PlannedTensor& item = tensors[at.tensor];
    specs.push_back(
        {.name = part_name(source, item, at.part),
         .dtype = item.parts[at.part].dtype,
         .shape = is_sliced() ? deal(source, item, at.part, places[at.place].ep_rank).slice_shape()
                              : part_shape(source, item, at.part)});
  }
  return formats::safetensors_header_text(specs);
}

Plan make_plan(const Checkpoint& source, const Recipe& recipe, const formats::Dialect& dialect,
               const PlanOptions& options) {
  shard::require_all_ranks(source);
  recipe.check_all_matched(source.tensors());
  Plan plan;
  plan.warnings = source.remarks();
  decide(source, recipe, dialect, plan);
  refuse_idle_options(source, recipe, plan);
  slice_plan(source, options, plan);
  for (PlannedTensor& item : plan.tensors) plan_parts(source, item);
  deal_files(source, options, plan);
  lay_out(source, plan);
  order_for_execution(plan);
  count(source, plan);
  derive_json(source, recipe, plan);
  for (std::string& warning : side_file_warnings(source))
    plan.warnings.push_back(std::move(warning));
  return plan;
}

Hash128 plan_hash(const Plan& plan, const TensorSource& source) {
  TensorHasher hasher;
  const auto add = [&](std::string_view text) {
    const std::uint64_t size = text.size();
    hasher.update(std::as_bytes(std::span(&size, 1)));
    hasher.update(std::as_bytes(std::span(text)));
  };
  for (std::size_t file = 0; file < plan.files.size(); ++file) {
    for (const PlannedFile::Member& member : plan.files[file].members) add(member.path);
    add(plan.header(source, file));
  }
  add(plan.config_text);
  add(plan.whole_config_text);
  add(plan.index_text);
  add(plan.description_text);
  return hasher.finish();
}

}  // namespace ingot::convert
