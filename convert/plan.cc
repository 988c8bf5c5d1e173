#include "convert/plan.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include <fmt/format.h>

#include "convert/band.h"
#include "convert/decide.h"
#include "convert/derived_json.h"
#include "formats/base/checked.h"
#include "formats/checkpoint_index.h"
#include "formats/safetensors.h"
#include "quantize/scheme.h"

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

// Keeps the distribution of the source: each part goes where its stored tensor was, a new one
// beside its weight. Files that would be empty vanish.
void deal_as_source(const Checkpoint& source, Plan& plan) {
  std::vector<std::uint32_t> used(source.files().size(), 0);
  const auto source_file = [&](const PlannedTensor& item, std::size_t p) {
    const formats::StoredParts& stored = source.tensors()[item.tensor].encoding.stored;
    const formats::Part part = item.parts[p].part;
    return source.stored()[stored.has(part) ? stored[part] : stored.weight()].file;
  };
  for (const PlannedTensor& item : plan.tensors) {
    for (std::size_t part = 0; part < item.n_parts; ++part) used[source_file(item, part)] = 1;
  }
  std::vector<std::uint32_t> new_index(used.size());
  for (std::size_t file = 0; file < used.size(); ++file) {
    if (used[file] == 0) continue;
    new_index[file] = static_cast<std::uint32_t>(plan.files.size());
    plan.files.push_back({.name = source.files()[file].name, .parts = {}});
  }
  for (PlannedTensor& item : plan.tensors) {
    for (std::size_t part = 0; part < item.n_parts; ++part) {
      item.parts[part].file = new_index[source_file(item, part)];
    }
  }
}

// The hub's rule: tensors in source order; a new file when the next would exceed the limit. Parts
// stay together.
void deal_by_size(Plan& plan, std::uint64_t max_bytes) {
  std::uint64_t in_file = 0;
  std::uint32_t file = 0;
  for (PlannedTensor& item : plan.tensors) {
    if (item.n_parts == 0) continue;
    std::uint64_t n_bytes = 0;
    for (std::size_t part = 0; part < item.n_parts; ++part) n_bytes += item.parts[part].n_bytes;
    if (in_file > 0 && in_file + n_bytes > max_bytes) {
      ++file;
      in_file = 0;
    }
    in_file += n_bytes;
    for (std::size_t part = 0; part < item.n_parts; ++part) item.parts[part].file = file;
  }
  for (std::uint64_t i = 0; i <= file; ++i) {
    plan.files.push_back(
        {.name = formats::shard_file_name(i + 1, std::uint64_t{file} + 1), .parts = {}});
  }
}

// Fixes order, offsets, header sizes and file sizes; the layout of docs/formats.md, "Writing".
void lay_out(const Checkpoint& source, Plan& plan) {
  for (std::uint32_t i = 0; i < plan.tensors.size(); ++i) {
    for (std::uint8_t part = 0; part < plan.tensors[i].n_parts; ++part) {
      plan.files[plan.tensors[i].parts[part].file].parts.emplace_back(i, part);
    }
  }
  for (std::size_t f = 0; f < plan.files.size(); ++f) {
    PlannedFile& file = plan.files[f];
    std::vector<std::string> names;
    names.reserve(file.parts.size());
    for (const auto& [i, part] : file.parts)
      names.push_back(plan.part_name(source, plan.tensors[i], part));
    std::vector<std::uint32_t> order(file.parts.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto dtype = [&](std::uint32_t at) {
      const auto& [i, part] = file.parts[at];
      return plan.tensors[i].parts[part].dtype;
    };
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
      return formats::writes_before(dtype(a), names[a], dtype(b), names[b]);
    });
    std::vector<std::pair<std::uint32_t, std::uint8_t>> sorted;
    sorted.reserve(order.size());
    for (const std::uint32_t at : order) sorted.push_back(file.parts[at]);
    file.parts = std::move(sorted);
    file.header_bytes = plan.header(source, f).size();
    std::uint64_t offset = file.header_bytes;
    for (const auto& [i, part] : file.parts) {
      plan.tensors[i].parts[part].offset = offset;
      offset += plan.tensors[i].parts[part].n_bytes;
    }
    file.n_bytes = offset;
  }
}

// Execution follows the output files, so that writes are sequential. Where the files are kept, that
// is the order of the source files too; within a file the source is read in name order per dtype,
// as it was written. A group stands where its first member would.
void order_for_execution(Plan& plan) {
  std::vector<std::uint32_t> order(plan.tensors.size());
  std::iota(order.begin(), order.end(), 0U);
  const auto own_key = [&](std::uint32_t i) {
    const PlannedTensor& item = plan.tensors[i];
    return std::tuple(item.n_parts == 0, item.parts[0].file, item.parts[0].offset, item.tensor);
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
    for (auto& [i, part] : file.parts) i = rank[i];
  }
  for (std::vector<std::uint32_t>& group : plan.groups) {
    for (std::uint32_t& member : group) member = rank[member];
    std::sort(group.begin(), group.end());
  }
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
    if (goes_through_bands(tensor, item)) {
      plan.band_bytes =
          std::max(plan.band_bytes, BandShape(tensor, item.to, item.block).buffer_bytes());
    }
  }
  for (const PlannedFile& file : plan.files) plan.bytes_out += file.n_bytes;

  std::uint64_t names = 0;
  for (const StoredTensor& stored : source.stored()) {
    names += stored.name.capacity() + stored.shape.capacity() * sizeof(std::uint64_t);
  }
  // Stored and logical tables, the plan's, per-item records of the run (four hashes and their
  // names), and the allocator's slack on top.
  plan.table_bytes =
      2 * names + source.stored().size() * (sizeof(StoredTensor) + 64) +
      source.tensors().size() * (sizeof(LogicalTensor) + sizeof(PlannedTensor) + 512);
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
  if (item.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[item.parts[part].part]].name;
  if (item.spelling == nullptr) return tensor.name;
  return formats::part_name(item.spelling->parts[part], tensor.name);
}

formats::Shape Plan::part_shape(const TensorSource& source, const PlannedTensor& item,
                                std::size_t part) const {
  const LogicalTensor& tensor = source.tensors()[item.tensor];
  if (item.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[item.parts[part].part]].shape;
  if (item.spelling == nullptr) return tensor.shape;
  return formats::part_shape(item.spelling->parts[part].shape, item.to, tensor.shape, item.block);
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
  for (const auto& [i, part] : files[file].parts) {
    specs.push_back({.name = part_name(source, tensors[i], part),
                     .dtype = tensors[i].parts[part].dtype,
                     .shape = part_shape(source, tensors[i], part)});
  }
  return formats::safetensors_header_text(specs);
}

Plan make_plan(const Checkpoint& source, const Recipe& recipe, const formats::Dialect& dialect,
               const PlanOptions& options) {
  recipe.check_all_matched(source.tensors());
  Plan plan;
  decide(source, recipe, dialect, plan);
  for (PlannedTensor& item : plan.tensors) plan_parts(source, item);
  if (options.shards.max_shard_bytes) {
    deal_by_size(plan, *options.shards.max_shard_bytes);
  } else {
    deal_as_source(source, plan);
  }
  lay_out(source, plan);
  order_for_execution(plan);
  count(source, plan);
  derive_json(source, recipe, plan);
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
    add(plan.files[file].name);
    add(plan.header(source, file));
  }
  add(plan.config_text);
  add(plan.index_text);
  add(plan.description_text);
  return hasher.finish();
}

}  // namespace ingot::convert
