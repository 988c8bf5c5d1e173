#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

#include "formats/family/family.h"

// Names of the scales of a quantized cache of keys and values: small parameters of attention, which
// no family's grammar has and any checkpoint may hold. Values are multipliers. Their values are
// read by checkpoint/stored_caches.h.

namespace ingot::formats {

/// Purpose of such a number.
enum class CacheSide : std::uint8_t {
  kKeys,
  kValues,
  kBoth,     ///< one scale for keys and values
  kQueries,  ///< queries of attention itself
  kProbabilities,
  kOffset,  ///< a bias or a zero point next to a scale
};

/// A way to spell such a name. Scales are F32, BF16 or F16 of shape [] or [1], or one per head in
/// any shape of so many elements; offsets have any shape.
struct CacheSpelling {
  std::string_view ending;  ///< name behind that of the attention module: `.k_proj.k_scale`
  CacheSide side{};
  std::string_view origin;  ///< tools that write it, or programs that call it so
};
/// The rows. The first whose ending a name has is its spelling.
std::span<const CacheSpelling> cache_spellings();

/// A scale's name, taken apart.
struct CacheScaleName {
  std::string_view block;     ///< the attention module, `model.layers.3.self_attn`
  std::string_view spelling;  ///< the rest, with its dot: `.k_proj.k_scale`
  CacheSide side{};
  std::string_view origin;  ///< CacheSpelling::origin
};

/// Nullopt for names of other tensors.
std::optional<CacheScaleName> cache_scale_name(std::string_view name);

/// Endings of the names of scales as a writer chooses them: a row per dialect that declares a
/// cache.
struct CacheNames {
  std::string_view keys, values, queries, probabilities;
  /// The ending for a side; empty for kBoth and kOffset, which are never written.
  [[nodiscard]] std::string_view of(CacheSide side) const;
};
/// Names that vLLM and SGLang map for every kind of attention; ModelOpt's.
inline constexpr CacheNames kProjectionCacheNames = {".k_proj.k_scale", ".v_proj.v_scale",
                                                     ".q_scale", ".attn.prob_scale"};
/// Names of compressed-tensors. For latent attention vLLM drops them.
inline constexpr CacheNames kPlainCacheNames = {".k_scale", ".v_scale", ".q_scale",
                                                ".attn.prob_scale"};

/// The row of such tensors in every family: of any shape, whole on every rank.
extern const TensorRule kCacheScaleRule;

/// True if a logical tensor's row is kCacheScaleRule.
inline bool is_cache_scale(const TensorRule* rule) {
  return rule == &kCacheScaleRule;
}

}  // namespace ingot::formats
