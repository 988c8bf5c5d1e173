#include "formats/family/cache_scales.h"

#include <algorithm>
#include <array>

namespace ingot::formats {
namespace {

using enum CacheSide;

struct Spelling {
  std::string_view ending;
  CacheSide side;
};

// As llm-compressor, ModelOpt, Quark and older tools write them, and as vLLM and SGLang call them
// at run time. The first that a name ends with is its spelling: longer ones come first.
constexpr std::array kSpellings = {
    Spelling{".k_proj.k_scale", kKeys},
    Spelling{".v_proj.v_scale", kValues},
    Spelling{".q_proj.q_scale", kQueries},
    Spelling{".qkv_proj.k_scale", kKeys},
    Spelling{".qkv_proj.v_scale", kValues},
    Spelling{".qkv_proj.q_scale", kQueries},
    Spelling{".qkqkv_proj.k_scale", kKeys},
    Spelling{".qkqkv_proj.v_scale", kValues},
    Spelling{".qkqkv_proj.q_scale", kQueries},
    Spelling{".kv_a_proj_with_mqa.k_scale", kBoth},
    Spelling{".mla_attn.mla_attn.k_scale", kKeys},
    Spelling{".mla_attn.mla_attn.v_scale", kValues},
    Spelling{".attn_mqa.k_scale", kKeys},
    Spelling{".attn_mqa.v_scale", kValues},
    Spelling{".attn.k_scale", kKeys},
    Spelling{".attn.v_scale", kValues},
    Spelling{".attn.q_scale", kQueries},
    Spelling{".attn.prob_scale", kProbabilities},
    Spelling{".k_proj.output_scale", kKeys},
    Spelling{".v_proj.output_scale", kValues},
    Spelling{".q_proj.output_scale", kQueries},
    Spelling{".prob_output_scale", kProbabilities},
    Spelling{".k_cache.scale", kKeys},
    Spelling{".v_cache.scale", kValues},
    Spelling{".q.scale", kQueries},
    Spelling{".kv_cache_scale", kBoth},
    Spelling{".kv_scale", kBoth},
    Spelling{".k_scale", kKeys},
    Spelling{".v_scale", kValues},
    Spelling{".q_scale", kQueries},
    Spelling{".k_proj.k_bias", kOffset},
    Spelling{".v_proj.v_bias", kOffset},
    Spelling{".k_zero_point", kOffset},
    Spelling{".v_zero_point", kOffset},
    Spelling{".q_zero_point", kOffset},
};

}  // namespace

constinit const TensorRule kCacheScaleRule = {
    .pattern = "", .role = Role::kOther, .scope = Scope::kModel, .any_shape = true};

std::optional<CacheScaleName> cache_scale_name(std::string_view name) {
  const auto found = std::ranges::find_if(kSpellings, [&](const Spelling& spelling) {
    return name.size() > spelling.ending.size() && name.ends_with(spelling.ending);
  });
  if (found == kSpellings.end()) return std::nullopt;
  const std::size_t n_block = name.size() - found->ending.size();
  return CacheScaleName{
      .block = name.substr(0, n_block), .spelling = name.substr(n_block), .side = found->side};
}

}  // namespace ingot::formats
