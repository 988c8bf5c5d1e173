#include "formats/family/cache_scales.h"

#include <algorithm>
#include <array>

namespace ingot::formats {
namespace {

using enum CacheSide;

constexpr std::string_view kOfModelopt = "ModelOpt", kOfCompressed = "compressed-tensors",
                           kOfFused = "exports of fused projections", kOfQuark = "FP8 and Quark",
                           kOfHunyuan = "Hunyuan V3", kOfOldVllm = "tools of vLLM 0.4",
                           kOfVllm = "vLLM at run time", kOfSglang = "SGLang for latent attention",
                           kOfEngines = "engines at run time";

// Longer endings come before those that they end with.
constexpr std::array kCacheSpellings = {
    CacheSpelling{".k_proj.k_scale", kKeys, kOfModelopt},
    CacheSpelling{".v_proj.v_scale", kValues, kOfModelopt},
    CacheSpelling{".q_proj.q_scale", kQueries, kOfModelopt},
    CacheSpelling{".qkv_proj.k_scale", kKeys, kOfFused},
    CacheSpelling{".qkv_proj.v_scale", kValues, kOfFused},
    CacheSpelling{".qkv_proj.q_scale", kQueries, kOfFused},
    CacheSpelling{".qkqkv_proj.k_scale", kKeys, kOfFused},
    CacheSpelling{".qkqkv_proj.v_scale", kValues, kOfFused},
    CacheSpelling{".qkqkv_proj.q_scale", kQueries, kOfFused},
    CacheSpelling{".kv_a_proj_with_mqa.k_scale", kBoth, kOfSglang},
    CacheSpelling{".mla_attn.mla_attn.k_scale", kKeys, kOfVllm},
    CacheSpelling{".mla_attn.mla_attn.v_scale", kValues, kOfVllm},
    CacheSpelling{".attn_mqa.k_scale", kKeys, kOfSglang},
    CacheSpelling{".attn_mqa.v_scale", kValues, kOfSglang},
    CacheSpelling{".attn.k_scale", kKeys, kOfEngines},
    CacheSpelling{".attn.v_scale", kValues, kOfEngines},
    CacheSpelling{".attn.q_scale", kQueries, kOfEngines},
    CacheSpelling{".attn.prob_scale", kProbabilities, kOfEngines},
    CacheSpelling{".k_proj.output_scale", kKeys, kOfQuark},
    CacheSpelling{".v_proj.output_scale", kValues, kOfQuark},
    CacheSpelling{".q_proj.output_scale", kQueries, kOfQuark},
    CacheSpelling{".prob_output_scale", kProbabilities, kOfQuark},
    CacheSpelling{".k_cache.scale", kKeys, kOfHunyuan},
    CacheSpelling{".v_cache.scale", kValues, kOfHunyuan},
    CacheSpelling{".q.scale", kQueries, kOfHunyuan},
    CacheSpelling{".kv_cache_scale", kBoth, kOfOldVllm},
    CacheSpelling{".kv_scale", kBoth, kOfOldVllm},
    CacheSpelling{".k_scale", kKeys, kOfCompressed},
    CacheSpelling{".v_scale", kValues, kOfCompressed},
    CacheSpelling{".q_scale", kQueries, kOfCompressed},
    CacheSpelling{".k_proj.k_bias", kOffset, kOfModelopt},
    CacheSpelling{".v_proj.v_bias", kOffset, kOfModelopt},
    CacheSpelling{".k_zero_point", kOffset, kOfCompressed},
    CacheSpelling{".v_zero_point", kOffset, kOfCompressed},
    CacheSpelling{".q_zero_point", kOffset, kOfCompressed},
};

}  // namespace

constinit const TensorRule kCacheScaleRule = {
    .pattern = "", .role = Role::kOther, .scope = Scope::kModel, .any_shape = true};

std::span<const CacheSpelling> cache_spellings() {
  return kCacheSpellings;
}

std::string_view CacheNames::of(CacheSide side) const {
  switch (side) {
    case kKeys:
      return keys;
    case kValues:
      return values;
    case kQueries:
      return queries;
    case kProbabilities:
      return probabilities;
    case kBoth:
    case kOffset:
      break;
  }
  return {};
}

std::optional<CacheScaleName> cache_scale_name(std::string_view name) {
  const auto found = std::ranges::find_if(kCacheSpellings, [&](const CacheSpelling& spelling) {
    return name.size() > spelling.ending.size() && name.ends_with(spelling.ending);
  });
  if (found == kCacheSpellings.end()) return std::nullopt;
  const std::size_t n_block = name.size() - found->ending.size();
  return CacheScaleName{.block = name.substr(0, n_block),
                        .spelling = name.substr(n_block),
                        .side = found->side,
                        .origin = found->origin};
}

}  // namespace ingot::formats
