#pragma once

#include <string_view>

#include "formats/family/cache_scales.h"
#include "formats/json/json_fwd.h"

// Words of configs about a quantized cache of keys and values (docs/formats.md, "Scales of the
// key-value cache").

namespace ingot::formats {

/// A dialect whose engines take static scales of a cache in FP8.
struct CacheDialect {
  std::string_view name;  ///< name of the dialect
  CacheNames names;       ///< names of scales outside of latent attention
  /// Declares the cache in `quantization_config` and in the dialect's description file. A null
  /// block becomes one of a model whose weights are plain; so does a null description, of a
  /// dialect that has such a file. Null: engines need a flag (--kv-cache-dtype fp8).
  void (*declare)(Json& block, Json& description);
};
/// Null for a dialect whose engines take none.
const CacheDialect* find_cache_dialect(std::string_view dialect);

/// The names that a writer of this dialect chooses.
inline const CacheNames& written_cache_names(const CacheDialect& dialect, bool is_latent) {
  return is_latent ? kProjectionCacheNames : dialect.names;
}

/// Numbers of a cache by a config.
enum class DeclaredCache {
  kNone,   ///< says nothing, or that it is not quantized
  kFp8,    ///< E4M3 in all layers, by static scales
  kOther,  ///< INT8, NVFP4, a bias next to scales, another form in each layer, unknown words
};
/// `object` is a block or a description file, whose member `quantization` is looked at too.
DeclaredCache declared_cache(const Json& object);

}  // namespace ingot::formats
