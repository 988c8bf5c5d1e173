#include <fmt/format.h>

#include "check/rules/loader_rule_bodies.h"

namespace ingot::formats {

Finding finding_of(const Error& error) {
  Finding finding;
  finding.code = error.code();
  finding.file = error.file();
  finding.tensor = error.tensor();
  finding.message = error.message();
  return finding;
}

namespace rule_bodies {

Finding violation(ErrorCode code, std::string_view file, std::string_view tensor,
                  std::string message) {
  return finding_of(Error(code, std::move(message)).in_file(file).in_tensor(tensor));
}

Finding at(const Checkpoint& checkpoint, const StoredTensor& tensor, ErrorCode code,
           std::string message) {
  return violation(code, checkpoint.files()[tensor.file].name, tensor.name, std::move(message));
}

Finding in_config(ErrorCode code, std::string message) {
  return violation(code, "config.json", "", std::move(message));
}

const StoredTensor& codes_of(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  return checkpoint.stored()[tensor.encoding.stored.weight()];
}

const StoredTensor* part_of(const Checkpoint& checkpoint, const LogicalTensor& tensor, Part part) {
  if (!tensor.encoding.stored.has(part)) return nullptr;
  return &checkpoint.stored()[tensor.encoding.stored[part]];
}

bool is_quantized(const LogicalTensor& tensor) {
  return scheme_facts(tensor.encoding.scheme).quantized;
}

bool is_part_of_model(const Checkpoint& checkpoint) {
  const SlicingRecord* slicing = checkpoint.slicing();
  return slicing != nullptr && (slicing->pp > 1 || slicing->ep > 1);
}

const Json* config_block(const Checkpoint& checkpoint) {
  const Json& raw = checkpoint.config().raw;
  if (!raw.is_object()) return nullptr;
  const auto block = raw.find("quantization_config");
  return block != raw.end() && block->is_object() ? &*block : nullptr;
}

std::array<std::uint64_t, 2> block_of(const Checkpoint& checkpoint) {
  try {
    return fp8_block_size(checkpoint.config());
  } catch (const Error&) {
    return {128, 128};  // the structure has said what is wrong with the config
  }
}

std::vector<std::string> strings_at(const Json& object, const char* key) {
  std::vector<std::string> strings;
  const auto list = object.find(key);
  if (list == object.end() || !list->is_array()) return strings;
  for (const Json& entry : *list) {
    if (entry.is_string()) strings.push_back(entry.get<std::string>());
  }
  return strings;
}

void FindingsByKind::add(const TensorRule* kind, Finding finding) {
  const auto [entry, is_new] = index_.try_emplace(kind, found_.size());
  if (is_new) found_.emplace_back(std::move(finding), 0);
  ++found_[entry->second].second;
}

void FindingsByKind::report(const Report& report) {
  for (auto& [finding, count] : found_) {
    if (count > 1) finding.message += fmt::format(" (so do {} more of this kind)", count - 1);
    report(std::move(finding));
  }
}

}  // namespace rule_bodies
}  // namespace ingot::formats
