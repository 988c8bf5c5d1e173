#include "formats/experts/expert_view.h"

#include <algorithm>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/family/family_yaml.h"
#include "formats/json/json.h"

namespace ingot::formats {

bool is_stack(const LogicalTensor& tensor) {
  return is_expert_stack(role_of(tensor));
}

bool is_single(const LogicalTensor& tensor) {
  return is_of_routed_expert(role_of(tensor)) && !is_stack(tensor);
}

const Dialect& dialect_of_singles(const Checkpoint& source) {
  const auto storage = source.dialect().storage;
  const auto stacks = std::ranges::find(storage, ExpertForm::kStacked, &StorageRow::experts);
  return stacks == storage.end() ? source.dialect() : default_dialect(stacks->scheme);
}

namespace {

/// The scheme whose parts a weight has: FP8 that is only read has those of E4M3.
SchemeId written_like(const LogicalTensor& tensor) {
  const Encoding& encoding = tensor.encoding;
  if (!is_read_only(encoding.scheme)) return encoding.scheme;
  const Shape& shape = tensor.shape;
  if (encoding.block_cols < shape.back()) return SchemeId::kFp8Block;
  if (encoding.block_rows == 1) return SchemeId::kFp8Channel;
  return encoding.block_rows < shape[shape.size() - 2] ? SchemeId::kFp8Block : SchemeId::kFp8Tensor;
}

}  // namespace

const StorageRow* storage_of(const Dialect& dialect, const Checkpoint& source,
                             const LogicalTensor& tensor) {
  const StorageRow* first = nullptr;
  const SchemeId scheme = written_like(tensor);
  const Dialect& names = is_read_only(tensor.encoding.scheme) ? default_dialect(scheme) : dialect;
  for (const StorageRow& row : names.storage) {
    if (row.scheme != scheme) continue;
    bool has_all = true, names_all = true;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t index) {
      const PartRow* at = find_part_row(row, part);
      has_all = has_all && at != nullptr;
      names_all =
          has_all && names_all && part_name(*at, tensor.name) == source.stored()[index].name;
    });
    if (has_all && names_all) return &row;
    if (has_all && first == nullptr) first = &row;
  }
  return first;
}

ModelConfig config_of_view(const Checkpoint& source, const Json& document) {
  ModelConfig config =
      config_of(source.family(), parse_model_config(json_text(document), kConfigName));
  // Found in the names of the tensors, which stay.
  const TextNesting& text = source.config().text;
  config.text.prefix = text.prefix;
  config.text.replaces_model = text.replaces_model;
  config.text.bare_words = text.bare_words;
  return config;
}

std::uint32_t ExpertView::add(std::string name, Shape shape, View view) {
  StoredTensor tensor = source_.stored()[view.pieces.front().stored];
  tensor.name = std::move(name);
  tensor.shape = std::move(shape);
  tensor.offset += view.pieces.front().offset;
  tensor.n_bytes = view.nest.n_bytes();
  if (view.make != nullptr) tensor.dtype = view.made_dtype;
  INGOT_CHECK(byte_count(tensor.dtype, tensor.shape) == tensor.n_bytes);
  parts_.push_back({.tensor = std::move(tensor), .view = std::move(view)});
  return static_cast<std::uint32_t>(parts_.size() - 1);
}

std::uint32_t ExpertView::keep(std::uint32_t stored) {
  return keep(stored, source_.stored()[stored].name);
}

std::uint32_t ExpertView::keep(std::uint32_t stored, std::string name) {
  StoredTensor tensor = source_.stored()[stored];
  tensor.name = std::move(name);
  View view{.nest = Nest(8, {{.n = tensor.n_bytes, .stride = 1}}), .pieces = {{.stored = stored}}};
  parts_.push_back({.tensor = std::move(tensor), .view = std::move(view)});
  return static_cast<std::uint32_t>(parts_.size() - 1);
}

void ExpertView::keep(LogicalTensor tensor) {
  StoredParts parts;
  tensor.encoding.stored.for_each(
      [&](Part part, std::uint32_t stored) { parts.set(part, keep(stored)); });
  tensor.encoding.stored = parts;
  tensors_.push_back(std::move(tensor));
}

Checkpoint ExpertView::finish(std::shared_ptr<const Checkpoint> source, const Dialect& dialect) {
  Draft draft = source->draft_of_view();
  draft.dialect = &dialect;
  return finish(std::move(source), std::move(draft));
}

Checkpoint ExpertView::finish(std::shared_ptr<const Checkpoint> source, Draft draft) {
  std::vector<std::uint32_t> order(parts_.size());
  for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::ranges::stable_sort(order, {},
                           [&](std::uint32_t i) { return parts_[i].view.pieces.front().stored; });
  std::vector<std::uint32_t> place(parts_.size());
  std::vector<View> views;
  for (const std::uint32_t i : order) {
    place[i] = static_cast<std::uint32_t>(views.size());
    draft.stored.push_back(std::move(parts_[i].tensor));
    views.push_back(std::move(parts_[i].view));
  }
  for (LogicalTensor& tensor : tensors_) {
    StoredParts parts;
    tensor.encoding.stored.for_each([&](Part part, std::uint32_t i) { parts.set(part, place[i]); });
    tensor.encoding.stored = parts;
  }
  draft.tensors = std::move(tensors_);
  draft.bytes = std::make_unique<ViewedBytes>(std::move(source), std::move(views));
  return Checkpoint::view(std::move(draft));
}

}  // namespace ingot::formats
