#include <algorithm>

#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// vLLM 0.32: read in its source, tried on CPUs, and on one and two H100 (docs/engines.md). The rest
// of what was tried on GPUs is 0.25.1, which read the same files alike.

namespace ingot::engines {
namespace {

constexpr std::string_view kV4OfVllm = "vllm/models/deepseek_v4/quant_config.py";
constexpr std::string_view kGptqOfVllm = "vllm/model_executor/layers/quantization/auto_gptq.py:100";
constexpr std::string_view kQuarkOfVllm =
    "vllm/model_executor/layers/quantization/quark/quark.py: _get_scheme_cls_from_config";
constexpr SchemeSet kNine = {kBf16,  kFp8Block, kFp8Channel, kFp8Tensor, kInt8Channel,
                             kNvfp4, kMxfp4,    kMxfp8,      kInt4Group};
constexpr SchemeSet kNineButMxfp8 = {kBf16,        kFp8Block, kFp8Channel, kFp8Tensor,
                                     kInt8Channel, kNvfp4,    kMxfp4,      kInt4Group};
constexpr SchemeSet kEight = {kBf16,  kFp8Block, kFp8Channel, kInt8Channel,
                              kNvfp4, kMxfp4,    kMxfp8,      kInt4Group};
constexpr SchemeSet kQuantized = {kFp8Block, kFp8Channel, kInt8Channel, kNvfp4,
                                  kMxfp4,    kMxfp8,      kInt4Group};
constexpr SchemeSet kNoBlocks = {kBf16,  kFp8Channel, kInt8Channel, kNvfp4,
                                 kMxfp4, kMxfp8,      kInt4Group};

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kOnGpu},
    EngineLoad{kAnyDialect, kF32, {}, kGenerated},
    EngineLoad{kAnyDialect, kF16, {}, kLoaded},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Block, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Channel, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Channel, kWeightOnly, kLoaded},
    EngineLoad{kModelopt, kFp8Channel, kDynamic, kLoaded},
    EngineLoad{kModelopt, kFp8Block, kDynamic, kRead, "",
               "vllm/model_executor/layers/quantization/modelopt.py:2213"},
    EngineLoad{kDeepseek, kFp8Tensor, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Tensor, kStatic, kOnGpu},
    EngineLoad{kModelopt, kFp8Tensor, kStatic, kOnGpu},
    EngineLoad{kCt, kFp8Tensor, kDynamic, kReplaced},
    EngineLoad{kCt, kFp8Tensor, kWeightOnly, kReplaced},
    EngineLoad{kDeepseek, kFp8Tensor, kStatic, kRead, "",
               "vllm/model_executor/layers/quantization/fp8.py:345"},
    EngineLoad{kCt, kInt8Channel, kDynamic, kOnGpu},
    EngineLoad{kCt, kInt8Channel, kStatic, kReplaced},
    EngineLoad{kCt, kInt4Group, kWeightOnly, kOnGpu},
    EngineLoad{kCt, kNvfp4, kWeightOnly, kOnGpu},
    EngineLoad{kCt, kNvfp4, kStatic, kOnGpu},
    EngineLoad{kModelopt, kNvfp4, kWeightOnly, kOnGpu},
    EngineLoad{kModelopt, kNvfp4, kStatic, kOnGpu},
    EngineLoad{kCt, kMxfp4, kWeightOnly, kOnGpu},
    EngineLoad{kMxfp4Stacks, kMxfp4, kWeightOnly, kOnGpu},
    EngineLoad{kGptq, kInt4Group, kWeightOnly, kRead, "", kGptqOfVllm},
    EngineLoad{kGptq, kInt8Channel, kWeightOnly, kRead, "", kGptqOfVllm},
    EngineLoad{kGptq, kInt8Block, kWeightOnly, kRead, "", kGptqOfVllm},
    EngineLoad{kAwq, kInt4Group, kWeightOnly, kRead, "",
               "vllm/model_executor/layers/quantization/auto_awq.py:284"},
    EngineLoad{kQuark, kFp8Tensor, kStatic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kFp8Tensor, kDynamic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kFp8Channel, kStatic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kFp8Channel, kDynamic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kFp8Block, kDynamic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kInt8Channel, kStatic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kInt8Channel, kDynamic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kMxfp4, kWeightOnly, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kMxfp8, kDynamic, kRead, "", kQuarkOfVllm},
    EngineLoad{kQuark, kMxfp8, kWeightOnly, kRead, "", kQuarkOfVllm},
    EngineLoad{kDeepseek, kMxfp4, kWeightOnly, kRead, "", kV4OfVllm},
    EngineLoad{kDeepseek, kNvfp4, kStatic, kRead, "", kV4OfVllm},
    EngineLoad{kCt, kMxfp8, kWeightOnly, kOnGpu},
    EngineLoad{kCt, kMxfp8, kDynamic, kGenerated},
    EngineLoad{kModelopt, kMxfp8, kDynamic, kRead, "",
               "vllm/model_executor/layers/quantization/modelopt.py: ModelOptMxFp8Config"},
};

// Code of oracle/int_wna16.py:686 permutes scales of groups as those of rows there; which backend
// is the default of a card: quantization/utils/humming/priority.py.
constexpr EngineLimit wide_groups(std::string_view dialect, bool is_foreign) {
  return {.dialect = dialect,
          .scheme = kInt4Group,
          .scope = kWideGroups,
          .reason =
              "its default backend of experts is Humming on Hopper only; on other cards "
              "it is Marlin, which mixes up the scales of such groups: noise where some "
              "are negative, a loss where none is",
          .instead = "a --group-size of 32 or 64 that is less",
          .option = "--moe-backend humming",
          .is_foreign = is_foreign,
          .effect = kGarbageWithout};
}

constexpr std::string_view kNoSuchParameter =
    "its loader of this family has no parameter of such a name (KeyError)";

constexpr std::array kLimits = {
    // Read in compressed_tensors_w8a16_fp8.py, process_weights_after_loading.
    EngineLimit{kCt, kFp8Block, kWeightOnly, kAny,
                "it asserts after loading, where the config has no activations", kDynamicInstead},
    EngineLimit{kCt, kFp8Channel, kWeightOnly, kExperts,
                "for weight-only experts it loads only format pack-quantized", kDynamicInstead},
    EngineLimit{kCt, kFp8Tensor, kDynamic, kExperts,
                "scales of weights per tensor go with scales of activations per tensor",
                "dialect deepseek, or --activations static"},
    EngineLimit{kCt, kFp8Tensor, kWeightOnly, kExperts, kNoInputs,
                "dialect deepseek, or --activations static"},
    EngineLimit{kCt, kInt8Channel, kWeightOnly, kAny,
                "it loads int-quantized weights only with quantized activations", kDynamicInstead},
    EngineLimit{kCt, kInt8Channel, kStatic, kExperts, "INT8 experts have activations per token",
                kDynamicInstead},
    EngineLimit{kModelslim, kInt8Channel, std::nullopt, kAny,
                "it does not know weight_offset (KeyError)", "dialect compressed-tensors", "", "",
                true},
    EngineLimit{kModelopt, kFp8Channel, std::nullopt, kExperts, "it loads one scale per expert",
                "dialect compressed-tensors"},
    // Read in modelopt.py:477, of other names in mixtures :1859.
    EngineLimit{kModelopt, kFp8Block, std::nullopt, kPlainNameExperts,
                "its experts under FP8_PB_WO have a scale per tensor", kNoBlocksOfModelopt},
    EngineLimit{kCt, kInt4Group, std::nullopt, kOrdered,
                "it no longer takes weights with an order of groups (actorder)",
                "INT4 of another --group-size, which is encoded again"},
    EngineLimit{kCt, kInt4Group, std::nullopt, kRowScaledExperts,
                "on Hopper its default backend of experts is Humming, which takes only groups; on "
                "other cards it is Marlin, which takes rows",
                "--group-size 32, 64 or 128", "--moe-backend marlin"},
    EngineLimit{kDeepseek, kInt8Block, std::nullopt, kAny,
                "it does not know quant_method blockwise_int8", "int8 of compressed-tensors"},
    // Read in models/mistral3.py:432.
    EngineLimit{kDeepseek, kFp8Tensor, kStatic, kInverseNames, kNamesOfOthers,
                "dialect compressed-tensors", "", "", true},
    // Read in compressed_tensors_embedding.py:169.
    EngineLimit{kCt, kInt4Group, std::nullopt, kTiedEmbeddings,
                "it looks words up in an embedding in INT4, and computes no logits with it",
                kPlainEmbedding},
    // Read in utils/gptq_utils.py:23, also of 8 bits.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kOrdered,
                "it no longer takes GPTQ with an order of groups (desc_act)", kOrderedInstead, "",
                "", true},
    // Read in auto_gptq.py:155, inc_wna16_linear.py:77 and marlin_utils.py:176. AutoRound's codes
    // of 2
    // and 3 bits go to Humming: inc_wna16_scheme.py:140.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kAsymmetric,
                "its kernels for GPTQ have no zero points (sym false)", kPackedInstead, "", "",
                true},
    EngineLimit{kGptq, kInt4Group, std::nullopt, kFewBits, "it takes GPTQ of 4 and 8 bits",
                kPackedInstead, "", "", true},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kOddGroups, kMarlinGroups, kOddGroupsInstead, "",
                "", true},
    // Read in auto_awq.py:304 and _custom_ops.py:594: Marlin takes neither, and the other kernel
    // (csrc/libtorch_stable/quantization/awq/gemm_kernels.cu) is for F16.
    EngineLimit{kAwq, kInt4Group, std::nullopt, kUnevenGroups,
                "its Marlin takes groups of 32, 64 or 128 columns, or rows, and its other kernel "
                "for AWQ multiples of 32",
                kOddGroupsInstead, "", "", true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kOddGroups,
                "its kernel for AWQ in such groups is for F16", kOddGroupsInstead,
                "--dtype float16", "", true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kNoZeroPoints,
                "its kernel for AWQ without zero points is for F16", kPackedInstead,
                "--dtype float16", "", true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kRowScaledExperts, kRowsOfAwq, kOddGroupsInstead,
                "", "", true},
    // Read in quantization/__init__.py, and in LINEAR_ALGOS of modelopt.py.
    EngineLimit{kGemma, kInt4Group, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kGemma, kInt8Channel, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kGemma, kInt8Block, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kMinimax, kMxfp8, std::nullopt, kAny,
                "it does not know quant_method minimax_m3_nvfp4", kQuarkInstead, "", "", true},
    EngineLimit{kMinimax, kNvfp4, std::nullopt, kAny,
                "it does not know quant_method minimax_m3_nvfp4", kQuarkInstead, "", "", true},
    EngineLimit{kModelopt, kInt4Group, std::nullopt, kAny, kNoInt4OfModelopt, kPackedInstead, "",
                "", true},
    EngineLimit{kQuark, kFp8Tensor, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "", true},
    EngineLimit{kQuark, kFp8Channel, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "",
                true},
    EngineLimit{kQuark, kFp8Block, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "", true},
    EngineLimit{kQuark, kInt8Channel, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "",
                true},
    quark_fp8_on_cards(kFp8Tensor),
    quark_fp8_on_cards(kFp8Channel),
    quark_fp8_on_cards(kFp8Block),
    // Read in quark_moe.py:1686.
    EngineLimit{kQuark, kMxfp8, std::nullopt, kExperts, "its experts of Quark have no MXFP8",
                kQuarkInstead, "", "", true},
    // Widths.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kCutGroups, kGroupOnRanks, kFewerRanks, "", "",
                true},
    EngineLimit{kAwq, std::nullopt, std::nullopt, kCutGroups, kGroupOnRanks, kFewerRanks, "", "",
                true},
    // Read in moe_wna16.py:278.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kThinExperts, kNoSmallerGroups, kFewerRanks, "",
                "", true},
    EngineLimit{kAwq, std::nullopt, std::nullopt, kThinExperts, kNoSmallerGroups, kFewerRanks, "",
                "", true},
    EngineLimit{kAnyDialect, kFp8Block, std::nullopt, kCutBlocks, kWholeBlocks, kOtherBlocks},
    wide_groups(kCt, false),
    wide_groups(kGptq, true),
    wide_groups(kAwq, true),
    // Code of compressed_tensors_moe_w4a4_mxfp4.py pads nothing; Marlin's tiles have 64 columns.
    EngineLimit{.dialect = kCt,
                .scheme = kMxfp4,
                .scope = kUnevenExperts,
                .reason = "Marlin has no kernel for experts of such a width (Invalid thread "
                          "config), and pads none of this dialect",
                .instead = "fewer ranks or --enable-expert-parallel, or nvfp4"},
    // Linears run in DeepGEMM there, unless VLLM_USE_DEEP_GEMM=0.
    EngineLimit{.dialect = kAnyDialect,
                .scheme = kFp8Block,
                .scope = kFreeScaledLinears,
                .reason = "on Hopper it encodes linears in FP8 blocks again, under scales that are "
                          "powers of two, which more than doubles the error if they were not",
                .instead = "--fp8-grid ue8m0 stores what it computes with; "
                           "VLLM_USE_DEEP_GEMM_E8M0=0 keeps the scales",
                .effect = kCoarser},
    // Read in fused_moe/routed_experts.py, _orient_fused_weight, and models/llama4.py:436.
    EngineLimit{kAnyDialect, std::nullopt, std::nullopt, kTurnedStacks, kOneOrder, kUsualOrder},
    // Read in deepseek_v2.py:1779 (names behind "layers."), kimi_k3/nvidia/model.py: load_weights,
    // deepseek_v4/nvidia/model.py: load_weights, hy_v4/nvidia/model.py: load_weights, with
    // default_loader.py:520.
    unlike_release(kOtherNames, "kimi_k2", kRefused, kNoSuchParameter),
    unlike_release(kOtherNames, "kimi_linear", kRefused, kNoSuchParameter),
    unlike_release(kOtherNames, "deepseek_v4", kRefused, kNoSuchParameter),
    unlike_release(
        kOtherNames, "hy_v4", kRefused,
        "its loader skips names that it does not know, and then ends with an error of "
        "weights that were not initialized; where the config has a quantization it computes "
        "with such weights"),
    // Read in longcat_flash.py: load_weights.
    EngineLimit{kAnyDialect, std::nullopt, std::nullopt, kIdentityExperts,
                "its loader has no place for gates and ups of experts without tensors (KeyError)",
                kReleasedExperts, "", "longcat_flash"},
    // Read there, and in deepseek_v2.py, deepseek_v32/nvidia/model.py, AXK1.py, glm4_moe_lite.py,
    // hy_v3.py.
    unlike_release(kStacks, "longcat_flash", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "deepseek_v2", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "deepseek_v2_mha", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "deepseek_v3", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "kimi_k2", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "deepseek_v32", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "glm_moe_dsa", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "axk1", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "hy_v3", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "glm4_moe_lite", kRefused, kNoSuchParameter),
    // Loaders of families.
    EngineLimit{.dialect = kAnyDialect,
                .scheme = kBf16,
                .scope = kForeignExperts,
                .reason = "its loader of gpt-oss counts single experts as loaded and fills none of "
                          "them",
                .instead = "--to mxfp4, or these stacks plain",
                .family = "gpt_oss",
                .effect = kGarbage},
    EngineLimit{kAnyDialect, std::nullopt, std::nullopt, kForeignExperts,
                "its loader of gpt-oss knows experts as stacks, plain or in MXFP4 as released",
                "--to mxfp4, or these stacks plain", "", "gpt_oss"},
    EngineLimit{kAnyDialect, std::nullopt, std::nullopt, kForeignExperts,
                "its loader of Inkling knows experts as stacks, plain or in NVFP4 as released",
                "these stacks plain", "", "inkling"},
    EngineLimit{kDeepseek, kFp8Block, std::nullopt, kAny,
                "its loader renames weight_scale_inv, since releases have one number a tensor",
                "dialect compressed-tensors", "", "ministral3"},
    EngineLimit{kCt, kFp8Block, std::nullopt, kRotated,
                "its loader takes scales of blocks for scales of rows where it turns q and k",
                "dialect deepseek", "", "llama4"},
    EngineLimit{kCt, std::nullopt, std::nullopt, kAny,
                "it calls layers of the vision tower otherwise than the ignore list",
                "dialect deepseek, or bf16", "", "minimax_m3_vl"},
};

constexpr std::array kFamilies = {
    EngineFamily{"deepseek_v3", kOnGpu, kNine},
    EngineFamily{"qwen3_moe", kOnGpu, kNineButMxfp8},
    EngineFamily{"qwen3_moe", kGenerated, {kMxfp8}},
    EngineFamily{"deepseek_v2", kReplaced, kEight},
    EngineFamily{"deepseek_v32", kGenerated, kSix},
    EngineFamily{"deepseek_v32", kReplaced, kEight},
    EngineFamily{"axk1", kReplaced, kQuantized},
    EngineFamily{"dots1", kReplaced, kEight},
    EngineFamily{"ernie4_5_moe", kReplaced, kNoBlocks},
    EngineFamily{"gemma3", kGenerated, {kBf16}},
    EngineFamily{"gemma3", kReplaced, kNine},
    EngineFamily{"glm4_moe", kReplaced, kEight},
    EngineFamily{"glm4_moe_lite", kReplaced, kEight},
    EngineFamily{"glm_moe_dsa", kReplaced, kEight},
    EngineFamily{"gpt_oss", kReplaced, {kBf16}},
    EngineFamily{"gpt_oss", kOnGpu, {kMxfp4}},
    EngineFamily{"hunyuan_v1_moe", kReplaced, kEight},
    EngineFamily{"kimi_k2", kOnGpu, {kBf16, kFp8Block, kInt4Group}},
    EngineFamily{"kimi_k2", kReplaced, kEight},
    EngineFamily{"kimi_linear", kReplaced, kEight},
    EngineFamily{"llama", kGenerated, {kBf16}},
    EngineFamily{"llama", kReplaced, kNine},
    EngineFamily{"llama4", kReplaced, kEight},
    EngineFamily{"longcat_flash", kReplaced, kEight},
    EngineFamily{"mimo_v2_flash", kReplaced, kEight},
    EngineFamily{"minimax_m2", kReplaced, kEight},
    EngineFamily{"ministral3", kReplaced, kEight},
    EngineFamily{"mistral", kGenerated, {kBf16}},
    EngineFamily{"mistral", kReplaced, kNine},
    EngineFamily{"mixtral", kGenerated, {kBf16}},
    EngineFamily{"mixtral", kReplaced, kNine},
    EngineFamily{"nemotron_h", kReplaced, kEight},
    EngineFamily{"qwen3", kGenerated, {kBf16}},
    EngineFamily{"qwen3", kReplaced, kNine},
    EngineFamily{"qwen3_5_moe", kReplaced, kEight},
    EngineFamily{"qwen3_next", kReplaced, kEight},
    EngineFamily{"solar_open", kReplaced, kEight},
    EngineFamily{"cohere2_moe", kRead, {kBf16}},
    EngineFamily{"dots3_note", kRead, {kBf16}},
    EngineFamily{"exaone", kRead, {kBf16}},
    EngineFamily{"interns2_mobius", kRead, {kBf16}},
    EngineFamily{"k2_horizon", kRead, {kBf16}},
    EngineFamily{"muse_glimmer", kRead, {kBf16}},
    EngineFamily{"sarvam_mla", kRead, {kBf16}},
    EngineFamily{"sarvam_moe", kRead, {kBf16}},
};

// Read in kimi_k25.py:311; prefixes that deepseek_v4/nvidia/model.py:1737 leaves as they are.
constexpr std::array kNames = {
    EngineNames{"kimi_k2", "language_model.layers."},
    EngineNames{"deepseek_v4", "model.layers."},
    EngineNames{"deepseek_v4", "model.norm."},
    EngineNames{"deepseek_v4", "model.embed_tokens."},
};

// Stacks of releases, and those that fused_moe/routed_experts.py loads: load_weights(). Classes of
// transformers have it in models/transformers/moe.py.
constexpr std::array<std::string_view, 26> kStackFamilies = {
    "afmoe",          "dbrx",       "ernie4_5_moe",   "exaone_moe",   "gemma4",
    "glm4_moe",       "glm4v_moe",  "gpt_oss",        "granitemoe",   "granitemoehybrid",
    "hunyuan_v1_moe", "hy_v4",      "inkling",        "jetmoe",       "laguna",
    "llama4",         "mellum",     "mistral4",       "qwen2_moe",    "qwen3_5_moe",
    "qwen3_moe",      "qwen3_next", "qwen3_omni_moe", "qwen3_vl_moe", "qwen4_exp",
    "step3p7"};

constexpr std::array kPins = {EnginePin{"compressed-tensors", "0.17.0"}};

// New in 0.33.
constexpr std::array kReadings033 = {EngineReading::kFlatExcludes,
                                     EngineReading::kProducerMixtures};
constexpr auto kFamilies033 = [] {
  constexpr std::array kNew = {
      EngineFamily{"beam", kRead, {kBf16}},     EngineFamily{"flint", kRead, {kBf16}},
      EngineFamily{"kolibri1", kRead, {kBf16}}, EngineFamily{"muse_spark", kRead, {kBf16}},
      EngineFamily{"step5", kRead, {kBf16}},
  };
  std::array<EngineFamily, kFamilies.size() + kNew.size()> all = {};
  std::ranges::copy(kNew, std::ranges::copy(kFamilies, all.begin()).out);
  return all;
}();
// Its experts of Quark have a class for MXFP8 (quark_moe.py: QuarkW8A8Mxfp8MoEMethod).
constexpr auto kLimits033 = [] {
  std::array limits = kLimits;
  for (EngineLimit& limit : limits) {
    if (limit.dialect != kQuark || limit.scheme != kMxfp8) continue;
    limit.activations = kWeightOnly;
    limit.reason = "its experts of Quark have MXFP8 only with activations in MXFP8";
  }
  return limits;
}();
// Loads and families whose code is not that of 0.32, by scripts/engines/read.py.
constexpr std::array<std::string_view, 10> kReadAgain033 = {"load.modelopt.fp8-tensor.static",
                                                            "load.mxfp4.mxfp4.weight-only",
                                                            "family.deepseek_v32",
                                                            "family.dots1",
                                                            "family.glm_moe_dsa",
                                                            "family.gpt_oss",
                                                            "family.hunyuan_v1_moe",
                                                            "family.kimi_linear",
                                                            "family.mimo_v2_flash",
                                                            "family.solar_open"};

constexpr EngineRow row_of(std::string_view version, std::string_view name) {
  return {.engine = Engine::kVllm,
          .word = "vllm",
          .version = version,
          .name = name,
          .is_judged = true,
          .command = "vllm serve",
          .ranks_option = "--tensor-parallel-size",
          .code_option = "--trust-remote-code",
          .ids_option = "--skip-tokenizer-init",
          .loads = kLoads,
          .limits = kLimits,
          .families = kFamilies,
          .names = kNames,
          .stacks = kStackFamilies,
          .skip_option = "--enable-expert-parallel --enable-ep-weight-filter",
          .pins = kPins};
}

constexpr EngineRow newest_row() {
  EngineRow row = row_of("0.33", "vLLM 0.33");
  row.limits = kLimits033;
  row.families = kFamilies033;
  row.readings = kReadings033;
  row.tried = "0.32";
  row.read_again = kReadAgain033;
  return row;
}

}  // namespace

constinit const EngineRow kVllmRow = newest_row();
constinit const EngineRow kVllm032Row = row_of("0.32", "vLLM 0.32");

}  // namespace ingot::engines
