#include "convert/plan/plan.h"

#include "convert/plan/layout_functions.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/engine_limits.h"
#include "quantize/scheme.h"

namespace ingot::convert {

using formats::LogicalTensor;

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

std::vector<std::uint32_t> Plan::stored_of(const PlannedTensor& planned) const {
  std::vector<std::uint32_t> stored;
  if (planned.action == Action::kDrop) return stored;
  tensor_of(planned).encoding.stored.for_each(
      [&](formats::Part, std::uint32_t index) { stored.push_back(index); });
  return stored;
}

std::set<std::uint32_t> Plan::source_files_of(const PlannedTensor& planned) const {
  std::set<std::uint32_t> of_tensor;
  for (const std::uint32_t stored : stored_of(planned))
    of_tensor.insert(source.stored()[stored].file);
  return of_tensor;
}

std::string Plan::part_name(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  std::string name;
  if (planned.action == Action::kCopy) {
    name = source.stored()[tensor.encoding.stored[planned.parts[part].part]].name;
  } else {
    name = planned.spelling == nullptr
               ? tensor.name
               : formats::part_name(planned.spelling->parts[part], tensor.name);
  }
  const auto spell = functions_of(*options.layout).stored_name;
  return spell == nullptr ? name : spell(name, source.config());
}

formats::Shape Plan::part_shape(const PlannedTensor& planned, std::size_t part) const {
  const LogicalTensor& tensor = tensor_of(planned);
  if (planned.action == Action::kCopy)
    return source.stored()[tensor.encoding.stored[planned.parts[part].part]].shape;
  if (planned.spelling == nullptr) return tensor.shape;
  const formats::PartShape spelled = planned.spelling->parts[part].shape;
  if (formats::is_joined_number(spelled, tensor.rule)) return {};
  return formats::part_shape(spelled, planned.to, tensor.shape, planned.block);
}

std::uint64_t Plan::fused_bytes(std::size_t set) const {
  std::uint64_t n_bytes = 0;
  for (const std::uint32_t index : fused_sets[set]) {
    const LogicalTensor& tensor = tensor_of(tensors[index]);
    n_bytes += source.stored()[tensor.encoding.stored.weight()].n_bytes;
  }
  return n_bytes;
}

std::string Plan::header(std::size_t file) const {
  std::vector<formats::TensorSpec> specs;
  specs.reserve(files[file].parts.size());
  for (const PartRef& at : files[file].parts) {
    const PlannedTensor& planned = tensors[at.tensor];
    specs.push_back({.name = part_name(planned, at.part),
                     .dtype = planned.parts[at.part].dtype,
                     .shape = is_sliced()
                                  ? deal(planned, at.part, places[at.place].ep_rank).slice_shape()
                                  : part_shape(planned, at.part)});
  }
  return formats::safetensors_header_text(specs);
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
    add(plan.header(file));
  }
  add(plan.json.config);
  add(plan.json.whole_config);
  add(plan.json.index);
  add(plan.json.description);
  return hasher.finish();
}

}  // namespace ingot::convert
