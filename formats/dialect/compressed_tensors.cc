#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/pattern.h"
#include "formats/dialect/dialect_table.h"

// The flavour that vLLM's tools write: docs/formats.md, "Two on-disk flavours".

namespace ingot::formats {
namespace {

constexpr std::array kHolds = {SchemeId::kFp8Block};
constexpr std::array<std::string_view, 1> kScaleSuffixes = {".weight_scale"};

constexpr const char* kIgnore = "ignore";
constexpr std::uint64_t kMaxBlockSide = std::uint64_t{1} << 32;

Error corrupt(std::string_view what, std::string_view fact) {
  return Error(ErrorCode::kCorrupt, fmt::format("'quantization_config.{}' {}", what, fact))
      .in_file("config.json");
}

Json standard_block(const ModelConfig& source) {
  const auto [rows, cols] = fp8_block_size(source);
  Json weights = {{"num_bits", 8},       {"type", "float"},
                  {"strategy", "block"}, {"block_structure", {rows, cols}},
                  {"symmetric", true},   {"dynamic", false}};
  Json activations = {{"num_bits", 8},      {"type", "float"},   {"strategy", "group"},
                      {"group_size", cols}, {"symmetric", true}, {"dynamic", true}};
  Json group = {{"format", "float-quantized"},
                {"targets", {"Linear"}},
                {"weights", std::move(weights)},
                {"input_activations", std::move(activations)},
                {"output_activations", nullptr}};
  Json block = {{"quant_method", "compressed-tensors"},
                {"format", "float-quantized"},
                {"quantization_status", "compressed"},
                {"config_groups", {{"group_0", std::move(group)}}}};
  block[kIgnore] = Json::array();
  return block;
}

/// Which modules a block's ignore list covers. Entries are names, or expressions behind `re:`.
class IgnoreList {
 public:
  explicit IgnoreList(const Json& block) {
    for (std::string& entry : string_list(block, kIgnore)) {
      if (!entry.starts_with("re:")) {
        names_.push_back(std::move(entry));
        continue;
      }
      try {
        patterns_.emplace_back(entry);
      } catch (const Error& error) {
        throw corrupt(kIgnore, fmt::format("holds '{}': {}", entry, error.message()));
      }
    }
    std::sort(names_.begin(), names_.end());
  }
  [[nodiscard]] bool covers(const std::string& module) const {
    return std::binary_search(names_.begin(), names_.end(), module) ||
           std::any_of(patterns_.begin(), patterns_.end(),
                       [&](const Pattern& pattern) { return pattern.matches(module); });
  }

 private:
  std::vector<std::string> names_;
  std::vector<Pattern> patterns_;
};

/// "Linear" as a target takes in every linear layer, so a block of our own must except each plain
/// one. Norms and the embedding are no linear layers.
std::vector<std::string> plain_linears(std::span<const WrittenTensor> written) {
  std::vector<std::string> modules;
  for (const WrittenTensor& tensor : written) {
    const std::string_view module = module_name(tensor.name);
    if (scheme_facts(tensor.scheme).quantized || module.ends_with("norm") ||
        module.ends_with("embed_tokens"))
      continue;
    if (tensor.fp8_by_default || tensor.name.ends_with(".weight")) modules.emplace_back(module);
  }
  return modules;
}

Json quantization_config(const ModelConfig& source, std::span<const WrittenTensor> written) {
  if (!any_quantized(written)) return nullptr;
  const Json* kept = source_block(source, kCompressedTensorsDialect);
  Json block = kept != nullptr ? *kept : standard_block(source);
  std::vector<std::string> plain =
      kept != nullptr ? unquantized_modules(written) : plain_linears(written);
  const IgnoreList ignored(block);
  plain.erase(std::remove_if(plain.begin(), plain.end(),
                             [&](const std::string& module) { return ignored.covers(module); }),
              plain.end());
  if (!plain.empty()) merge_into_list(block, kIgnore, plain);
  return block;
}

std::uint64_t block_side(const Json& value) {
  if (!value.is_number_unsigned() || value == 0 || value > kMaxBlockSide) {
    throw corrupt("config_groups", fmt::format("has a block_structure of {}", value.dump()));
  }
  return value.get<std::uint64_t>();
}

}  // namespace

std::optional<std::array<std::uint64_t, 2>> compressed_tensors_block_size(const Json& block) {
  const auto groups = block.find("config_groups");
  if (groups == block.end() || groups->is_null()) return std::nullopt;
  if (!groups->is_object()) throw corrupt("config_groups", "is not an object");
  std::optional<std::array<std::uint64_t, 2>> found;
  for (const auto& [name, group] : groups->items()) {
    if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
    const Json& weights = group["weights"];
    if (weights.value("type", Json()) != "float" || weights.value("num_bits", Json()) != 8)
      continue;
    const Json strategy = weights.value("strategy", Json());
    if (strategy != "block") {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("config_groups.{} scales FP8 weights by {}, this version reads FP8 by block",
                      name, strategy.dump()))
          .in_file("config.json");
    }
    const Json sides = weights.value("block_structure", Json());
    if (!sides.is_array() || sides.size() != 2)
      throw corrupt("config_groups", "has a bad block_structure");
    const std::array<std::uint64_t, 2> size = {block_side(sides[0]), block_side(sides[1])};
    if (found && *found != size) {
      throw Error(ErrorCode::kUnsupported,
                  "config_groups has FP8 weights in blocks of several sizes")
          .in_file("config.json");
    }
    found = size;
  }
  return found;
}

const Dialect kCompressedTensorsDialect = {
    .name = "compressed-tensors",
    .summary = "quant_method compressed-tensors: X.weight with X.weight_scale, which multiplies",
    .holds = kHolds,
    .scale_suffixes = kScaleSuffixes,
    .quantization_config = quantization_config};

}  // namespace ingot::formats
