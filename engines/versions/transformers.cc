#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// transformers 5.24: read in its source, and tried on CPUs (docs/engines.md).

namespace ingot::engines {
namespace {

constexpr std::string_view kStackedFrom =
    "it stacks only experts in FP8 with a scale per row or tensor, and in packed codes without a "
    "global scale";
constexpr std::string_view kStackedInstead = "fp8-channel, mxfp4 or int4";
constexpr std::string_view kGemmaOfTransformers =
    "src/transformers/quantizers/quantizer_gemma.py: GemmaQuantizer";
constexpr std::string_view kSkipped =
    "it skips a quant_method that it does not know, and takes codes for weights";

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kGenerated},
    EngineLoad{kAnyDialect, kF32, {}, kGenerated},
    EngineLoad{kAnyDialect, kF16, {}, kGenerated},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kGenerated},
    EngineLoad{kMxfp4Stacks, kMxfp4, kWeightOnly, kRead, "",
               "src/transformers/integrations/mxfp4.py:111"},
    EngineLoad{kCt, kFp8Block, kDynamic, kGenerated},
    EngineLoad{kCt, kFp8Channel, kDynamic, kGenerated},
    EngineLoad{kCt, kInt8Channel, kDynamic, kGenerated},
    EngineLoad{kCt, kInt4Group, kWeightOnly, kGenerated},
    EngineLoad{kCt, kNvfp4, kWeightOnly, kGenerated},
    EngineLoad{kCt, kMxfp4, kWeightOnly, kGenerated},
    EngineLoad{kCt, kMxfp8, kWeightOnly, kGenerated},
    EngineLoad{kGemma, kInt4Group, kWeightOnly, kRead, "", kGemmaOfTransformers},
    EngineLoad{kGemma, kInt8Channel, kWeightOnly, kRead, "", kGemmaOfTransformers},
    EngineLoad{kGemma, kInt8Block, kWeightOnly, kRead, "", kGemmaOfTransformers},
};

constexpr std::array kLimits = {
    EngineLimit{kCt, kFp8Block, std::nullopt, kExperts, kStackedFrom, kStackedInstead},
    EngineLimit{kCt, kInt8Channel, std::nullopt, kExperts, kStackedFrom, kStackedInstead},
    EngineLimit{kCt, kMxfp8, std::nullopt, kExperts, kStackedFrom, kStackedInstead},
    // Code of integrations/compressed_tensors.py gives the decoder weight_packed and weight_scale.
    EngineLimit{.dialect = kCt,
                .scheme = kNvfp4,
                .scope = kExperts,
                .reason = "it decodes stacked experts in NVFP4 without their global scales",
                .instead = kStackedInstead,
                .effect = kGarbage},
    EngineLimit{kModelopt, std::nullopt, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
    EngineLimit{kDeepseek, kInt8Block, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
    EngineLimit{kMinimax, kMxfp8, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
    EngineLimit{kMinimax, kNvfp4, std::nullopt, kAny, kSkipped,
                "fp8, or dialect compressed-tensors", "", "", true},
};

constexpr SchemeSet kOfDense = {kBf16,  kFp8Block, kFp8Channel, kInt8Channel,
                                kNvfp4, kMxfp4,    kMxfp8,      kInt4Group};
constexpr std::array kFamilies = {
    EngineFamily{"deepseek_v3", kGenerated, {kBf16, kFp8Channel, kMxfp4, kInt4Group}},
    // Numbers of transformers are wrong where a last block is not full (docs/engines.md).
    EngineFamily{"deepseek_v3", kLoaded, {kFp8Block}},
    EngineFamily{"qwen3_moe", kGenerated, {kBf16, kFp8Block, kFp8Channel, kMxfp4, kInt4Group}},
    EngineFamily{"gemma3", kGenerated, kOfDense},
    EngineFamily{"gpt_oss", kRead, {kMxfp4}},
    EngineFamily{"llama", kGenerated, kOfDense},
    EngineFamily{"mistral", kGenerated, kOfDense},
    EngineFamily{"mixtral", kGenerated, {kBf16, kFp8Block, kFp8Channel, kMxfp4, kInt4Group}},
    EngineFamily{"qwen3", kGenerated, kOfDense},
    // Classes of 5.24.
    EngineFamily{"axk2", kRead, {kBf16}},
    EngineFamily{"bailing_hybrid", kRead, {kBf16}},
    EngineFamily{"beam", kRead, {kBf16}},
    EngineFamily{"cohere2_moe", kRead, {kBf16}},
    EngineFamily{"dots3_note", kRead, {kBf16}},
    EngineFamily{"exaone", kRead, {kBf16}},
    EngineFamily{"flint", kRead, {kBf16}},
    EngineFamily{"hy_v4_vl", kRead, {kBf16}},
    EngineFamily{"inkling2", kRead, {kBf16}},
    EngineFamily{"inkling2_loop", kRead, {kBf16}},
    EngineFamily{"internlm3", kRead, {kBf16}},
    EngineFamily{"iquestcoder", kRead, {kBf16}},
    EngineFamily{"kolibri1", kRead, {kBf16}},
    EngineFamily{"mistral_large4", kRead, {kBf16}},
    EngineFamily{"muse_glimmer", kRead, {kBf16}},
    EngineFamily{"muse_spark", kRead, {kBf16}},
    EngineFamily{"sarvam_mla", kRead, {kBf16}},
    EngineFamily{"sarvam_moe", kRead, {kBf16}},
    EngineFamily{"zaya", kRead, {kBf16}},
};

// Names that transformers 5.24 saves.
constexpr std::array kNames = {
    EngineNames{"kimi_k2", "language_model.model.blocks."},
    EngineNames{"kimi_linear", "model.layers.{layer}.block_sparse_moe.gate_proj."},
    EngineNames{"kimi_linear", "model.layers.{layer}.block_sparse_moe.up_proj."},
    EngineNames{"kimi_linear", "model.layers.{layer}.block_sparse_moe.down_proj."},
    EngineNames{"deepseek_v4", "model.layers.{layer}.attn.norm."},
    EngineNames{"deepseek_v4", "model.layers."},
    EngineNames{"deepseek_v4", "model.norm."},
    EngineNames{"deepseek_v4", "model.embed_tokens."},
    EngineNames{"deepseek_v4", "model.hc_head.hc_fn"},
    EngineNames{"deepseek_v4", "model.hc_head.hc_base"},
    EngineNames{"deepseek_v4", "model.hc_head.hc_scale"},
    EngineNames{"hy_v4", "model.hc_pre.hc_head."},
    EngineNames{"hy_v4", "model.layers.{layer}.hc_pre.hc_attn_layer."},
    EngineNames{"hy_v4", "model.layers.{layer}.hc_pre.hc_mlp_layer."},
    EngineNames{"hy_v4", "model.layers.{layer}.mlp.linear_gate.weight"},
    EngineNames{"hy_v4", "model.layers.{layer}.mlp.shared_experts.linear_gate.weight"},
};

}  // namespace

const EngineRow kTransformersRow = {
    .engine = Engine::kTransformers,
    .word = "transformers",
    .version = "5.24",
    .name = "transformers 5.24",
    .command =
        "python -c \"import sys, transformers as t; "
        "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], "
        "device_map='auto')\"",
    .ranks_option = "",
    .code_option = "",
    .loads = kLoads,
    .limits = kLimits,
    .families = kFamilies,
    .names = kNames,
};

}  // namespace ingot::engines
