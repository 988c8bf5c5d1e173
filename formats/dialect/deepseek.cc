#include <algorithm>

#include "formats/dialect/dialect_table.h"

// Native DeepSeek FP8 as released: docs/formats.md, "config.json quantization block".

namespace ingot::formats {
namespace {

constexpr std::array kHolds = {SchemeId::kFp8Block};
constexpr std::array<std::string_view, 2> kScaleSuffixes = {".weight_scale_inv", ".scale"};

// transformers reads the first, vLLM the second where it is there.
constexpr const char* kTransformersList = "modules_to_not_convert";
constexpr const char* kVllmList = "ignored_layers";

Json standard_block(const ModelConfig& source) {
  const auto [rows, cols] = fp8_block_size(source);
  return {{"activation_scheme", "dynamic"},
          {"fmt", "e4m3"},
          {"quant_method", "fp8"},
          {"weight_block_size", {rows, cols}}};
}

/// Entries name a module or everything below one. `entries` is sorted.
bool is_listed(const std::vector<std::string>& entries, std::string_view module) {
  while (true) {
    if (std::binary_search(entries.begin(), entries.end(), module)) return true;
    const std::size_t dot = module.rfind('.');
    if (dot == std::string_view::npos) return false;
    module = module.substr(0, dot);
  }
}

Json quantization_config(const ModelConfig& source, std::span<const WrittenTensor> written) {
  if (!any_quantized(written)) return nullptr;
  const Json* kept = source_block(source, kDeepseekDialect);
  Json block = kept != nullptr ? *kept : standard_block(source);

  std::vector<std::string> listed = string_list(block, kTransformersList);
  const std::vector<std::string> of_vllm = string_list(block, kVllmList);
  listed.insert(listed.end(), of_vllm.begin(), of_vllm.end());
  std::sort(listed.begin(), listed.end());
  std::vector<std::string> added = unquantized_modules(written);
  added.erase(std::remove_if(added.begin(), added.end(),
                             [&](const std::string& module) { return is_listed(listed, module); }),
              added.end());
  if (added.empty()) return block;
  // Once vLLM finds its own list it no longer looks at the other, so each gets all of both.
  listed.insert(listed.end(), added.begin(), added.end());
  merge_into_list(block, kTransformersList, listed);
  merge_into_list(block, kVllmList, listed);
  return block;
}

}  // namespace

const Dialect kDeepseekDialect = {
    .name = "deepseek",
    .summary = "quant_method fp8: X.weight with X.weight_scale_inv, which multiplies",
    .holds = kHolds,
    .scale_suffixes = kScaleSuffixes,
    .quantization_config = quantization_config};

}  // namespace ingot::formats
