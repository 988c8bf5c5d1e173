#include "formats/dialect/engine_families.h"

#include <algorithm>
#include <array>

namespace ingot::formats {
namespace {

using enum Engine;
using enum Evidence;
using enum SchemeId;

constexpr SchemeSet kEight = {kBf16,  kFp8Block, kFp8Channel, kInt8Channel,
                              kNvfp4, kMxfp4,    kMxfp8,      kInt4Group};
constexpr SchemeSet kNoBlocks = {kBf16,  kFp8Channel, kInt8Channel, kNvfp4,
                                 kMxfp4, kMxfp8,      kInt4Group};
constexpr SchemeSet kQuantized = {kFp8Block, kFp8Channel, kInt8Channel, kNvfp4,
                                  kMxfp4,    kMxfp8,      kInt4Group};
constexpr SchemeSet kSix = {kBf16, kFp8Block, kFp8Channel, kInt8Channel, kNvfp4, kInt4Group};
constexpr SchemeSet kSglangsEight = {kBf16,        kFp8Block,  kFp8Channel, kFp8Tensor,
                                     kInt8Channel, kInt8Block, kNvfp4,      kInt4Group};
constexpr SchemeSet kFive = {kBf16, kFp8Block, kFp8Channel, kNvfp4, kInt4Group};

constexpr std::array kFamilies = {
    EngineFamily{kVllm,
                 "deepseek_v3",
                 kGenerated,
                 {kBf16, kFp8Block, kFp8Channel, kFp8Tensor, kInt8Channel, kNvfp4, kMxfp4, kMxfp8,
                  kInt4Group}},
    EngineFamily{
        kVllm, "qwen3_moe", kGenerated, {kBf16, kFp8Block, kInt8Channel, kNvfp4, kInt4Group}},
    EngineFamily{kVllm, "qwen3_moe", kLoaded, kEight},
    EngineFamily{kVllm, "deepseek_v2", kLoaded, kEight},
    EngineFamily{
        kVllm, "deepseek_v32", kGenerated, {kBf16, kFp8Block, kFp8Channel, kInt8Channel, kNvfp4}},
    EngineFamily{kVllm, "deepseek_v32", kLoaded, kEight},
    EngineFamily{kVllm, "axk1", kLoaded, kQuantized},
    EngineFamily{kVllm, "dots1", kLoaded, kEight},
    EngineFamily{kVllm, "ernie4_5_moe", kLoaded, kNoBlocks},
    EngineFamily{kVllm, "glm4_moe", kLoaded, kEight},
    EngineFamily{kVllm, "glm4_moe_lite", kLoaded, kEight},
    EngineFamily{kVllm, "glm_moe_dsa", kLoaded, kEight},
    EngineFamily{kVllm, "gpt_oss", kLoaded, {kBf16}},
    EngineFamily{kVllm, "gpt_oss", kRead, {kMxfp4}},
    EngineFamily{kVllm, "hunyuan_v1_moe", kLoaded, kEight},
    EngineFamily{kVllm, "kimi_k2", kLoaded, kEight},
    EngineFamily{kVllm, "kimi_linear", kLoaded, kEight},
    EngineFamily{kVllm, "llama4", kLoaded, kEight},
    EngineFamily{kVllm, "longcat_flash", kLoaded, kEight},
    EngineFamily{kVllm, "mimo_v2_flash", kLoaded, kEight},
    EngineFamily{kVllm, "minimax_m2", kLoaded, kEight},
    EngineFamily{kVllm, "ministral3", kLoaded, kEight},
    EngineFamily{kVllm, "nemotron_h", kLoaded, kEight},
    EngineFamily{kVllm, "qwen3_5_moe", kLoaded, kEight},
    EngineFamily{kVllm, "qwen3_next", kLoaded, kEight},
    EngineFamily{kVllm, "solar_open", kLoaded, kEight},

    EngineFamily{kSglang, "deepseek_v3", kLoaded, kSglangsEight},
    EngineFamily{kSglang, "deepseek_v32", kLoaded, kSglangsEight},
    EngineFamily{kSglang, "ernie4_5_moe", kLoaded, {kBf16, kFp8Channel, kNvfp4, kInt4Group}},
    EngineFamily{kSglang, "glm4_moe", kLoaded, kSix},
    EngineFamily{kSglang, "glm4_moe_lite", kLoaded, kSix},
    EngineFamily{kSglang, "glm_moe_dsa", kLoaded, kSglangsEight},
    EngineFamily{kSglang, "hunyuan_v1_moe", kLoaded, kSix},
    EngineFamily{kSglang, "kimi_k2", kLoaded, kSix},
    EngineFamily{kSglang, "llama4", kLoaded, kFive},
    EngineFamily{kSglang, "minimax_m2", kLoaded, kSix},
    EngineFamily{kSglang, "ministral3", kLoaded, {kBf16, kFp8Channel}},
    EngineFamily{kSglang, "qwen3_moe", kLoaded, kSglangsEight},
};

}  // namespace

std::span<const EngineFamily> engine_families() {
  return kFamilies;
}

Evidence family_evidence(Engine engine, std::string_view family, SchemeId scheme) {
  if (!engine_facts(engine).is_judged) return kGenerated;
  // Loaders cast plain weights: one dtype is as good as another.
  if (!scheme_facts(scheme).quantized) scheme = kBf16;
  Evidence best = kNotOfFamily;
  for (const EngineFamily& row : kFamilies) {
    if (row.engine == engine && row.family == family && row.schemes.contains(scheme))
      best = std::min(best, row.evidence);
  }
  return best;
}

}  // namespace ingot::formats
