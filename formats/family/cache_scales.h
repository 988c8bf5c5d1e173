#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "formats/family/family.h"

// Scales of a quantized cache of keys and values: small parameters of attention, which no family's
// grammar has and any checkpoint may hold. Values are multipliers.

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

/// A scale's name, taken apart.
struct CacheScaleName {
  std::string_view block;     ///< the attention module, `model.layers.3.self_attn`
  std::string_view spelling;  ///< the rest, with its dot: `.k_proj.k_scale`
  CacheSide side{};
};

/// Nullopt for names of other tensors.
std::optional<CacheScaleName> cache_scale_name(std::string_view name);

/// The row of such tensors in every family: of any shape, whole on every rank.
extern const TensorRule kCacheScaleRule;

/// True if a logical tensor's row is kCacheScaleRule.
inline bool is_cache_scale(const TensorRule* rule) {
  return rule == &kCacheScaleRule;
}

}  // namespace ingot::formats
