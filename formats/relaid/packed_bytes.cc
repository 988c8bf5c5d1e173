#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/config_groups.h"
#include "formats/json/json.h"
#include "formats/relaid/relaid_bytes.h"
#include "formats/relaid/relaid_codes.h"
#include "formats/storage/stored_names.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kPackedSuffix = ".weight_packed";

/// The compressed-tensors group of a module's packed integers; null where there is none.
const ConfigGroup* group_of_integers(const ConfigGroups& groups, std::string_view module) {
  const ConfigGroup* group = groups.stored_group(module);
  if (group == nullptr || !group->has_weights) return nullptr;
  const Json& type = json_member(json_member(*group->json, "weights"), "type");
  return type.is_null() || type == "int" ? group : nullptr;
}

std::uint64_t bits_of(const ConfigGroup& group) {
  const Json& bits = json_member(json_member(*group.json, "weights"), "num_bits");
  return bits.is_number_unsigned() ? bits.get<std::uint64_t>() : 8;
}

/// True if, by the config, all stored zero points are 128.
bool is_symmetric(const ConfigGroup& group) {
  return json_member(json_member(*group.json, "weights"), "symmetric") != false;
}

/// True if a scheme has such groups of columns: whole rows, or a run that INT8 blocks have.
bool is_known_group(std::uint64_t cols, std::uint64_t groups) {
  const std::uint64_t size = cols / groups;
  return groups == 1 || size == 32 || size == 64 || size == 128;
}

}  // namespace

bool is_packed_int8(const Encoding& encoding) {
  return scheme_facts(encoding.scheme).code == CodeKind::kInt8 &&
         encoding.stored.has(Part::kDimensions);
}

bool relay_packed_bytes(const ModelConfig& config, const RelaidModel& model, ErrorList& faults) {
  const auto is_packed = [](const StoredTensor& tensor) {
    return tensor.name.ends_with(kPackedSuffix) && tensor.dtype == DType::kI32;
  };
  if (std::ranges::none_of(model.stored, is_packed)) return false;
  std::vector<std::string> ignored;
  const ConfigGroups groups(quantization_block(config), &ignored);
  // Codes of 4 bits, which nearly all are, need no names.
  std::optional<StoredNames> names;
  const auto find = [&](std::string_view name) {
    if (!names) names.emplace(model.stored);
    return names->find(name);
  };
  std::set<const ConfigGroup*> unread;
  std::vector<InputMajorWeight> sources;
  std::unordered_map<const StoredTensor*, std::uint32_t> source_of;  // sources by part
  const auto fault = [&](const StoredTensor& tensor, ErrorCode code, std::string message) {
    faults.add(Error(code, std::move(message))
                   .in_file(model.bytes->files()[tensor.file].name)
                   .in_tensor(tensor.name));
  };
  for (const StoredTensor& tensor : model.stored) {
    if (!is_packed(tensor)) continue;
    const std::string stem = tensor.name.substr(0, tensor.name.size() - kPackedSuffix.size());
    const ConfigGroup* group = group_of_integers(groups, stem);
    if (group == nullptr || bits_of(*group) == 4) continue;
    if (bits_of(*group) != 8) {
      if (unread.insert(group).second) {
        fault(tensor, ErrorCode::kUnsupported,
              fmt::format("is of {0} bits: quantization_config says num_bits {0} in "
                          "config_groups.{1}, and of packed integers this version reads 4 and 8 "
                          "(take the release that it was made from)",
                          bits_of(*group), group->name));
      }
      continue;
    }
    const auto part = [&](std::string_view suffix) {
      const auto found = find(stem + std::string(suffix));
      return found ? std::optional(model.stored[*found]) : std::nullopt;
    };
    const auto scales = part(".weight_scale");
    if (!scales) continue;
    InputMajorWeight source{.codes = tensor,
                            .scales = *scales,
                            .zeros = part(".weight_zero_point"),
                            .order = part(".weight_g_idx"),
                            .form = {.is_symmetric = is_symmetric(*group), .bits = 8},
                            .is_output_major = true};
    const Shape &words = tensor.shape, &grid = scales->shape;
    const bool has_sides = words.size() == 2 && grid.size() == 2 && grid[0] == words[0] &&
                           words[0] > 0 && words[1] > 0 && grid[1] > 0;
    source.cols = has_sides ? checked_mul(words[1], 4).value_or(0) : 0;
    if (source.cols == 0 || source.cols % grid[1] != 0 || !is_known_group(source.cols, grid[1])) {
      fault(tensor, ErrorCode::kUnsupported,
            fmt::format("is packed in 8 bits (num_bits 8 in config_groups.{}) with shape {} and "
                        "scales of shape {}; this version reads matrices with a scale for each row "
                        "or for 32, 64 or 128 columns",
                        group->name, shape_text(words), shape_text(grid)));
      continue;
    }
    source.rows = words[0];
    source.groups = grid[1];
    const auto has_form = [&](const std::optional<StoredTensor>& at, const Shape& shape,
                              DTypeSet dtypes) {
      if (!at || (at->shape == shape && dtypes.has(at->dtype))) return true;
      fault(*at, ErrorCode::kShapeMismatch,
            fmt::format("is {} of shape {}, with codes of 8 bits it must be {} of shape {}",
                        dtype_name(at->dtype), shape_text(at->shape), dtypes.text(),
                        shape_text(shape)));
      return false;
    };
    if (!has_form(source.zeros, {ceil_div(source.rows, 4), source.groups}, {DType::kI32}) ||
        !has_form(source.order, {source.cols}, {DType::kI32}))
      continue;
    // The order of such a weight is a part of it: that of a run of columns decodes as any other.
    if (source.order) source.form.has_order = source.groups > 1;
    if (!find(stem + ".weight_shape") && model.is_complete) {
      fault(tensor, ErrorCode::kMissingTensor,
            "is packed without its dimensions (there is no weight_shape; loaders unpack by it)");
    }
    for (const char* suffix : {".weight_packed", ".weight_zero_point", ".weight_g_idx"}) {
      if (const auto found = find(stem + suffix))
        source_of.emplace(&model.stored[*found], static_cast<std::uint32_t>(sources.size()));
    }
    if (const auto taken = find(stem + ".weight")) {
      fault(model.stored[*taken], ErrorCode::kDuplicate,
            fmt::format("is here as well as '{}' (which one is meant? remove the other)",
                        tensor.name));
    }
    sources.push_back(std::move(source));
  }
  if (sources.empty()) return false;
  std::vector<StoredTensor> seen;
  std::vector<RelaidView> views;
  for (const StoredTensor& tensor : model.stored) {
    const auto source = source_of.find(&tensor);
    if (source == source_of.end()) {
      seen.push_back(tensor);
      views.push_back({.made = RelaidAs::kAsStored, .source = 0, .original = tensor});
      continue;
    }
    const InputMajorWeight& weight = sources[source->second];
    const bool is_part = tensor.name.ends_with(".weight_zero_point")
                             ? !weight.form.is_symmetric
                             : tensor.name.ends_with(".weight_g_idx") && weight.form.has_order;
    if (is_packed(tensor)) {
      seen.push_back(seen_as(tensor, ".weight", DType::kI8, {weight.rows, weight.cols}));
      views.push_back({.made = RelaidAs::kBytes, .source = source->second, .original = tensor});
    } else if (is_part) {
      seen.push_back(tensor);
      views.push_back({.made = RelaidAs::kAsStored, .source = 0, .original = tensor});
    }
  }
  model.stored = std::move(seen);
  model.bytes = relaid_bytes(/*has_order=*/false, std::move(model.bytes), std::move(sources),
                             std::move(views));
  return true;
}

}  // namespace ingot::formats
