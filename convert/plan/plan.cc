#include "convert/plan/plan.h"

#include "convert/plan/layout_functions.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/engine_limits.h"
#include "quantize/scheme.h"

namespace ingot::convert {

using formats::LogicalTensor;
using formats::TensorSource;

std::string_view action_name(Action action) {
  switch (action) {
    case Action::kCopy:
      return "copy";
    case Action::kRepackage:
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
  const auto spell = functions_of(*layout).stored_name;
  return spell == nullptr ? name : spell(name, source.config());
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

std::uint64_t Plan::fused_bytes(const TensorSource& source, std::size_t set) const {
  std::uint64_t n_bytes = 0;
  for (const std::uint32_t index : fused_sets[set]) {
    const LogicalTensor& tensor = source.tensors()[tensors[index].tensor];
    n_bytes += source.stored()[tensor.encoding.stored.weight()].n_bytes;
  }
  return n_bytes;
}

std::string Plan::header(const TensorSource& source, std::size_t file) const {
  std::vector<formats::TensorSpec> specs;
  specs.reserve(files[file].parts.size());
  for (const PartRef& at : files[file].parts) {
    const PlannedTensor& item = tensors[at.tensor];
    specs.push_back(
        {.name = part_name(source, item, at.part),
         .dtype = item.parts[at.part].dtype,
         .shape = is_sliced() ? deal(source, item, at.part, places[at.place].ep_rank).slice_shape()
                              : part_shape(source, item, at.part)});
  }
  return formats::safetensors_header_text(specs);
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
  add(plan.json.config);
  add(plan.json.whole_config);
  add(plan.json.index);
  add(plan.json.description);
  return hasher.finish();
}

}  // namespace ingot::convert
