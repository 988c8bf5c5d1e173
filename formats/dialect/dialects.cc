#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/dialect_table.h"

namespace ingot::formats {
namespace {

constexpr std::array kDialects = {&kDeepseekDialect, &kCompressedTensorsDialect};

constexpr std::string_view kWeightSuffix = ".weight";
constexpr std::array<std::uint64_t, 2> kReleasedBlock = {128, 128};

}  // namespace

std::span<const Dialect* const> dialects() {
  return kDialects;
}

const Dialect* find_dialect(std::string_view name) {
  for (const Dialect* dialect : kDialects) {
    if (dialect->name == name) return dialect;
  }
  return nullptr;
}

const Dialect& dialect_of(const ModelConfig& config) {
  const std::string method = config.quantization ? config.quantization->quant_method : "";
  if (method.empty() || method == "fp8") return kDeepseekDialect;
  if (method == "compressed-tensors") return kCompressedTensorsDialect;
  throw Error(
      ErrorCode::kUnsupported,
      fmt::format(
          "quant_method '{}' cannot be read by this version (fp8 and compressed-tensors can)",
          method))
      .in_file("config.json");
}

std::string part_name(const Dialect& dialect, std::string_view weight_name, Part part) {
  std::string name(weight_name);
  if (part == Part::kWeight) return name;
  const std::string_view suffix = dialect.scale_suffixes.front();
  if (weight_name.ends_with(kWeightSuffix)) {
    name.resize(name.size() - kWeightSuffix.size());
    return name.append(suffix);
  }
  // Stacked experts `P`, of which the scale is `P_scale_inv`: the suffix without its `.weight`.
  INGOT_CHECK(suffix.starts_with(kWeightSuffix));
  return name.append(suffix.substr(kWeightSuffix.size()));
}

std::array<std::uint64_t, 2> fp8_block_size(const ModelConfig& config) {
  if (config.quantization && config.quantization->weight_block_size)
    return *config.quantization->weight_block_size;
  if (const Json* block = source_block(config, kCompressedTensorsDialect)) {
    return compressed_tensors_block_size(*block).value_or(kReleasedBlock);
  }
  return kReleasedBlock;
}

const Json* source_block(const ModelConfig& source, const Dialect& dialect) {
  if (!source.quantization || &dialect_of(source) != &dialect || !source.raw.is_object())
    return nullptr;
  const auto block = source.raw.find("quantization_config");
  return block != source.raw.end() && block->is_object() ? &*block : nullptr;
}

std::string_view module_name(std::string_view weight_name) {
  if (weight_name.ends_with(kWeightSuffix)) weight_name.remove_suffix(kWeightSuffix.size());
  return weight_name;
}

std::vector<std::string> unquantized_modules(std::span<const WrittenTensor> written) {
  std::vector<std::string> modules;
  for (const WrittenTensor& tensor : written) {
    if (tensor.fp8_by_default && !scheme_facts(tensor.scheme).quantized)
      modules.emplace_back(module_name(tensor.name));
  }
  std::sort(modules.begin(), modules.end());
  return modules;
}

bool any_quantized(std::span<const WrittenTensor> written) {
  return std::any_of(written.begin(), written.end(), [](const WrittenTensor& tensor) {
    return scheme_facts(tensor.scheme).quantized;
  });
}

std::vector<std::string> string_list(const Json& block, const char* key) {
  std::vector<std::string> strings;
  const auto list = block.find(key);
  if (list == block.end() || list->is_null()) return strings;
  const auto refuse = [&] {
    return Error(ErrorCode::kCorrupt,
                 fmt::format("'quantization_config.{}' is not a list of strings", key))
        .in_file("config.json");
  };
  if (!list->is_array()) throw refuse();
  for (const Json& entry : *list) {
    if (!entry.is_string()) throw refuse();
    strings.push_back(entry.get<std::string>());
  }
  return strings;
}

void merge_into_list(Json& block, const char* key, const std::vector<std::string>& modules) {
  std::vector<std::string> all = string_list(block, key);
  all.insert(all.end(), modules.begin(), modules.end());
  std::sort(all.begin(), all.end());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  block[key] = all;
}

}  // namespace ingot::formats
