#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "convert/recipe/kv_ranges.h"
#include "formats/checkpoint/checkpoint.h"

namespace ingot::convert {

/// Scales of a cache for a model whose weights stay as they are: a small weights file, an index
/// with this file and all others, and the JSON that declares the cache. Loaders open only files in
/// the index. So these files are copied into the model's folder, and replace its index and JSON.
struct CacheOverlay {
  std::vector<std::pair<std::string, std::string>> files;  ///< names and contents
  std::size_t n_scales = 0;
  std::vector<std::string> warnings;
};

/// The weights file of an overlay.
inline constexpr const char* kCacheOverlayName = "model-kv-scales.safetensors";

/// Makes the overlay of a model on disk, from headers and JSON. `dialect`: of --dialect, or empty
/// for that of the source; a model without quantized weights gets that of compressed-tensors.
/// Throws kExists for a model that stores scales of its cache, kUnsupported for slices and for a
/// dialect whose engines take no such scales, and the errors of KvRanges::scales_for().
CacheOverlay cache_overlay(const formats::Checkpoint& source, const KvRanges& ranges,
                           const std::string& dialect);

/// Writes its files into a folder, which it makes. Throws kExists for a folder that has files of
/// these names, unless `force`.
void write_overlay(const CacheOverlay& overlay, const std::filesystem::path& output, bool force);

}  // namespace ingot::convert
