#include "convert/output/cache_overlay.h"

#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/nested_config.h"
#include "formats/container/safetensors.h"
#include "formats/dialect/cache_words.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"

namespace ingot::convert {
namespace {

using formats::Checkpoint;
using formats::Json;

constexpr std::uint64_t kDataBoundary = 8;

const formats::Dialect& dialect_of_overlay(const Checkpoint& source, const std::string& dialect) {
  if (!dialect.empty()) return *formats::find_dialect(dialect);
  const bool is_silent =
      formats::has_plain_only(source) && formats::quantization_block(source.config()).is_null();
  return is_silent ? *formats::find_dialect("compressed-tensors") : source.dialect();
}

/// A weights file with one F32 [1] per scale, in the order of names.
std::string scales_file(const std::map<std::string, float>& scales) {
  std::vector<formats::TensorSpec> specs;
  for (const auto& [name, scale] : scales)
    specs.push_back({.name = name, .dtype = formats::DType::kF32, .shape = {1}});
  std::string text = formats::safetensors_header_text(specs);
  text.resize(round_up(text.size(), kDataBoundary), ' ');
  const std::uint64_t n_bytes = text.size() - sizeof(n_bytes);
  std::memcpy(text.data(), &n_bytes, sizeof(n_bytes));
  for (const auto& [name, scale] : scales) {
    std::array<char, sizeof(scale)> bytes{};
    std::memcpy(bytes.data(), &scale, sizeof(scale));
    text.append(bytes.data(), bytes.size());
  }
  return text;
}

/// An index of the model's files, as they are, and of the new one.
std::string index_text(const Checkpoint& source, const std::map<std::string, float>& scales) {
  formats::CheckpointIndex index;
  index.frame = source.index_frame();
  std::uint64_t total = scales.size() * sizeof(float);
  for (const formats::SourceFile& file : source.files()) {
    const Fd opened = Fd::open_for_reading(source.directory() / file.name);
    for (const formats::StoredTensor& tensor : formats::read_safetensors_header(opened).tensors) {
      index.weight_map.emplace_back(tensor.name, file.name);
      total += tensor.n_bytes;
    }
  }
  for (const auto& [name, scale] : scales) index.weight_map.emplace_back(name, kCacheOverlayName);
  return formats::checkpoint_index_text(index, total);
}

}  // namespace

CacheOverlay cache_overlay(const Checkpoint& source, const KvRanges& ranges,
                           const std::string& dialect) {
  const auto refuse = [&](ErrorCode code, std::string fact) {
    return Error(code, std::move(fact)).in_directory(source.directory().string());
  };
  if (source.slicing() != nullptr || source.bytes().on_disk() == nullptr)
    throw refuse(ErrorCode::kUnsupported,
                 "--kv-scales-only needs a whole model, not slices of ranks (merge them)");
  if (!formats::stored_caches(source).empty())
    throw refuse(ErrorCode::kExists,
                 "stores scales of its cache, next to which loaders would read others "
                 "(--kv-scales without --kv-scales-only writes them anew)");
  const formats::Dialect& target = dialect_of_overlay(source, dialect);
  const formats::CacheDialect* words = formats::find_cache_dialect(target.name);
  if (words == nullptr)
    throw refuse(ErrorCode::kUnsupported,
                 fmt::format("engines of dialect {} take no scales of a cache", target.name));
  CacheOverlay overlay;
  std::vector<std::string> without;
  const formats::CacheNames& names =
      formats::written_cache_names(*words, source.config().kv_lora_rank > 0);
  std::map<std::string, float> scales;
  for (const auto& [module, pair] : ranges.scales_for(source, /*is_part=*/false, without)) {
    scales.emplace(module + std::string(names.keys), pair.keys);
    scales.emplace(module + std::string(names.values), pair.values);
  }
  overlay.n_scales = scales.size();
  if (!without.empty())
    overlay.warnings.push_back(
        fmt::format("{} attention module(s) of MTP layers have no range, and a cache under scale 1",
                    without.size()));
  overlay.files = {{kCacheOverlayName, scales_file(scales)},
                   {std::string(formats::kIndexName), index_text(source, scales)}};
  if (words->declare == nullptr) {
    overlay.warnings.push_back(
        fmt::format("dialect {} has no word for a quantized cache: engines quantize it only where "
                    "they are told to (--kv-cache-dtype fp8)",
                    target.name));
    return overlay;
  }
  Json config = *source.config().raw, description = source.description();
  Json block = formats::quantization_block(source.config());
  words->declare(block, description);
  formats::set_quantization_block(source.config(), config, std::move(block));
  overlay.files.emplace_back(
      "config.json", formats::json_text(config, formats::json_form_of(source.config_text())));
  if (!description.is_null())
    overlay.files.emplace_back(std::string(target.description_file),
                               formats::json_text(description));
  return overlay;
}

void write_overlay(const CacheOverlay& overlay, const std::filesystem::path& output, bool force) {
  for (const auto& [name, text] : overlay.files) {
    if (!force && std::filesystem::exists(output / name))
      throw Error(ErrorCode::kExists, "is there already (--force replaces it)")
          .in_file((output / name).string());
  }
  std::filesystem::create_directories(output);
  for (const auto& [name, text] : overlay.files) replace_file(output / name, text);
}

}  // namespace ingot::convert
