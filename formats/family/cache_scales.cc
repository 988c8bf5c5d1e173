#include "formats/family/cache_scales.h"

#include <algorithm>
#include <array>

namespace ingot::formats {
namespace {

using enum CacheSide;

struct ScaleSpelling {
  std::string_view ending;
  CacheSide side;
};

// Suffixes as llm-compressor, ModelOpt, Quark and older tools write them, and as vLLM and SGLang
// call them at run time. The first that a name ends with is its spelling: longer ones come first.
constexpr std::array kScaleSpellings = {
    ScaleSpelling{".k_proj.k_scale", kKeys},
    ScaleSpelling{".v_proj.v_scale", kValues},
    ScaleSpelling{".q_proj.q_scale", kQueries},
    ScaleSpelling{".qkv_proj.k_scale", kKeys},
    ScaleSpelling{".qkv_proj.v_scale", kValues},
    ScaleSpelling{".qkv_proj.q_scale", kQueries},
    ScaleSpelling{".qkqkv_proj.k_scale", kKeys},
    ScaleSpelling{".qkqkv_proj.v_scale", kValues},
    ScaleSpelling{".qkqkv_proj.q_scale", kQueries},
    ScaleSpelling{".kv_a_proj_with_mqa.k_scale", kBoth},
    ScaleSpelling{".mla_attn.mla_attn.k_scale", kKeys},
    ScaleSpelling{".mla_attn.mla_attn.v_scale", kValues},
    ScaleSpelling{".attn_mqa.k_scale", kKeys},
    ScaleSpelling{".attn_mqa.v_scale", kValues},
    ScaleSpelling{".attn.k_scale", kKeys},
    ScaleSpelling{".attn.v_scale", kValues},
    ScaleSpelling{".attn.q_scale", kQueries},
    ScaleSpelling{".attn.prob_scale", kProbabilities},
    ScaleSpelling{".k_proj.output_scale", kKeys},
    ScaleSpelling{".v_proj.output_scale", kValues},
    ScaleSpelling{".q_proj.output_scale", kQueries},
    ScaleSpelling{".prob_output_scale", kProbabilities},
    ScaleSpelling{".k_cache.scale", kKeys},
    ScaleSpelling{".v_cache.scale", kValues},
    ScaleSpelling{".q.scale", kQueries},
    ScaleSpelling{".kv_cache_scale", kBoth},
    ScaleSpelling{".kv_scale", kBoth},
    ScaleSpelling{".k_scale", kKeys},
    ScaleSpelling{".v_scale", kValues},
    ScaleSpelling{".q_scale", kQueries},
    ScaleSpelling{".k_proj.k_bias", kOffset},
    ScaleSpelling{".v_proj.v_bias", kOffset},
    ScaleSpelling{".k_zero_point", kOffset},
    ScaleSpelling{".v_zero_point", kOffset},
    ScaleSpelling{".q_zero_point", kOffset},
};

}  // namespace

constinit const TensorRule kCacheScaleRule = {
    .pattern = "", .role = Role::kOther, .scope = Scope::kModel, .any_shape = true};

std::optional<CacheScaleName> cache_scale_name(std::string_view name) {
  const auto found = std::ranges::find_if(kScaleSpellings, [&](const ScaleSpelling& spelling) {
    return name.size() > spelling.ending.size() && name.ends_with(spelling.ending);
  });
  if (found == kScaleSpellings.end()) return std::nullopt;
  const std::size_t n_block = name.size() - found->ending.size();
  return CacheScaleName{
      .block = name.substr(0, n_block), .spelling = name.substr(n_block), .side = found->side};
}

}  // namespace ingot::formats
