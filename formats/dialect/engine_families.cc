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
constexpr SchemeSet kNine = {kBf16,  kFp8Block, kFp8Channel, kFp8Tensor, kInt8Channel,
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
    EngineFamily{kVllm, "deepseek_v3", kGenerated, kNine},
    EngineFamily{kVllm, "qwen3_moe", kGenerated, kNine},
    EngineFamily{kVllm, "deepseek_v2", kReplaced, kEight},
    EngineFamily{kVllm, "deepseek_v32", kGenerated, kSix},
    EngineFamily{kVllm, "deepseek_v32", kReplaced, kEight},
    EngineFamily{kVllm, "axk1", kReplaced, kQuantized},
    EngineFamily{kVllm, "dots1", kReplaced, kEight},
    EngineFamily{kVllm, "ernie4_5_moe", kReplaced, kNoBlocks},
    EngineFamily{kVllm, "glm4_moe", kReplaced, kEight},
    EngineFamily{kVllm, "glm4_moe_lite", kReplaced, kEight},
    EngineFamily{kVllm, "glm_moe_dsa", kReplaced, kEight},
    EngineFamily{kVllm, "gpt_oss", kReplaced, {kBf16}},
    EngineFamily{kVllm, "gpt_oss", kGenerated, {kMxfp4}},
    EngineFamily{kVllm, "hunyuan_v1_moe", kReplaced, kEight},
    EngineFamily{kVllm, "kimi_k2", kGenerated, {kBf16, kFp8Block, kInt4Group}},
    EngineFamily{kVllm, "kimi_k2", kReplaced, kEight},
    EngineFamily{kVllm, "kimi_linear", kReplaced, kEight},
    EngineFamily{kVllm, "llama4", kReplaced, kEight},
    EngineFamily{kVllm, "longcat_flash", kReplaced, kEight},
    EngineFamily{kVllm, "mimo_v2_flash", kReplaced, kEight},
    EngineFamily{kVllm, "minimax_m2", kReplaced, kEight},
    EngineFamily{kVllm, "ministral3", kReplaced, kEight},
    EngineFamily{kVllm, "nemotron_h", kReplaced, kEight},
    EngineFamily{kVllm, "qwen3_5_moe", kReplaced, kEight},
    EngineFamily{kVllm, "qwen3_next", kReplaced, kEight},
    EngineFamily{kVllm, "solar_open", kReplaced, kEight},

    EngineFamily{kSglang, "deepseek_v3", kReplaced, kSglangsEight},
    EngineFamily{kSglang, "deepseek_v32", kReplaced, kSglangsEight},
    EngineFamily{kSglang, "ernie4_5_moe", kReplaced, {kBf16, kFp8Channel, kNvfp4, kInt4Group}},
    EngineFamily{kSglang, "glm4_moe", kReplaced, kSix},
    EngineFamily{kSglang, "glm4_moe_lite", kReplaced, kSix},
    EngineFamily{kSglang, "glm_moe_dsa", kReplaced, kSglangsEight},
    EngineFamily{kSglang, "hunyuan_v1_moe", kReplaced, kSix},
    EngineFamily{kSglang, "kimi_k2", kReplaced, kSix},
    EngineFamily{kSglang, "llama4", kReplaced, kFive},
    EngineFamily{kSglang, "minimax_m2", kReplaced, kSix},
    EngineFamily{kSglang, "ministral3", kReplaced, {kBf16, kFp8Channel}},
    EngineFamily{kSglang, "qwen3_moe", kReplaced, kSglangsEight},
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
