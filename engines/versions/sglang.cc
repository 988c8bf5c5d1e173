#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// SGLang 0.5.23: read in its source; it computed on an H200, and its loaders were tried on CPUs,
// with kernels replaced (docs/engines.md).

namespace ingot::engines {
namespace {

constexpr std::string_view kV4Fp4OfSglang =
    "python/sglang/srt/model_loader/loader.py: is_fp4_experts";
constexpr std::string_view kV4OfSglang =
    "python/sglang/srt/layers/quantization/modelopt_quant.py: HybridFp8NvFp4Config";
constexpr std::string_view kGptqOfSglang = "python/sglang/srt/layers/quantization/gptq/gptq.py:468";
constexpr std::string_view kQuarkOfSglang =
    "python/sglang/srt/layers/quantization/quark/quark.py:998";
constexpr std::string_view kMinimaxOfSglang =
    "sglang/srt/layers/quantization/minimax_m3_nvfp4.py: MiniMaxM3Nvfp4Config";
constexpr SchemeSet kSglangsEight = {kBf16,        kFp8Block,  kFp8Channel, kFp8Tensor,
                                     kInt8Channel, kInt8Block, kNvfp4,      kInt4Group};
constexpr SchemeSet kSeven = {kBf16,        kFp8Block, kFp8Channel, kFp8Tensor,
                              kInt8Channel, kNvfp4,    kInt4Group};
constexpr SchemeSet kFive = {kBf16, kFp8Block, kFp8Channel, kNvfp4, kInt4Group};

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kOnGpu},
    EngineLoad{kAnyDialect, kF32, {}, kReplaced},
    EngineLoad{kAnyDialect, kF16, {}, kReplaced},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Block, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Channel, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Channel, kWeightOnly, kOnGpu},
    EngineLoad{kDeepseek, kFp8Tensor, kDynamic, kOnGpu},
    EngineLoad{kModelopt, kFp8Tensor, kStatic, kOnGpu},
    EngineLoad{kCt, kFp8Tensor, kStatic, kOnGpu},
    EngineLoad{kCt, kFp8Tensor, kDynamic, kOnGpu},
    EngineLoad{kCt, kFp8Tensor, kWeightOnly, kOnGpu},
    EngineLoad{kDeepseek, kFp8Tensor, kStatic, kRead, "",
               "python/sglang/srt/layers/quantization/fp8.py:712"},
    EngineLoad{kCt, kInt8Channel, kDynamic, kOnGpu},
    EngineLoad{kModelslim, kInt8Channel, kDynamic, kNotTried},
    EngineLoad{kModelslim, kInt8Channel, kStatic, kNotTried},
    EngineLoad{kDeepseek, kInt8Block, kDynamic, kOnGpu},
    EngineLoad{kCt, kInt4Group, kWeightOnly, kOnGpu},
    EngineLoad{kCt, kNvfp4, kWeightOnly, kOnGpu},
    EngineLoad{kCt, kNvfp4, kStatic, kOnGpu},
    EngineLoad{kModelopt, kNvfp4, kWeightOnly, kOnGpu},
    EngineLoad{kModelopt, kNvfp4, kStatic, kOnGpu},
    EngineLoad{kMxfp4Stacks, kMxfp4, kWeightOnly, kOnGpu},
    EngineLoad{kGptq, kInt4Group, kWeightOnly, kRead, "", kGptqOfSglang},
    EngineLoad{kGptq, kInt8Channel, kWeightOnly, kRead, "", kGptqOfSglang},
    EngineLoad{kGptq, kInt8Block, kWeightOnly, kRead, "", kGptqOfSglang},
    EngineLoad{kAwq, kInt4Group, kWeightOnly, kRead, "",
               "python/sglang/srt/layers/quantization/awq/awq.py:245"},
    EngineLoad{kCt, kMxfp4, kWeightOnly, kRead, "", "python/sglang/srt/models/kimi_k3.py:3207"},
    EngineLoad{kQuark, kFp8Tensor, kStatic, kRead, "", kQuarkOfSglang},
    EngineLoad{kQuark, kFp8Tensor, kDynamic, kRead, "", kQuarkOfSglang},
    EngineLoad{kQuark, kFp8Channel, kStatic, kRead, "", kQuarkOfSglang},
    EngineLoad{kQuark, kFp8Channel, kDynamic, kRead, "", kQuarkOfSglang},
    EngineLoad{kQuark, kFp8Block, kDynamic, kRead, "", kQuarkOfSglang},
    EngineLoad{kQuark, kMxfp4, kWeightOnly, kRead, "", kQuarkOfSglang},
    EngineLoad{kMinimax, kMxfp8, kDynamic, kRead, "", kMinimaxOfSglang},
    EngineLoad{kMinimax, kNvfp4, kStatic, kRead, "", kMinimaxOfSglang},
    EngineLoad{kDeepseek, kMxfp4, kWeightOnly, kRead, "", kV4Fp4OfSglang},
    EngineLoad{kDeepseek, kNvfp4, kStatic, kRead, "", kV4OfSglang},
};

// Read in models/llama.py:723, for families that it loads; a line in its log is all that tells.
constexpr EngineLimit unfilled(std::string_view family, SchemeId scheme, std::string_view instead) {
  return {.dialect = kDeepseek,
          .scheme = scheme,
          .scope = kAny,
          .reason = "its loader renames weight_scale_inv, and leaves the scales of blocks unfilled",
          .instead = instead,
          .family = family,
          .effect = kGarbage};
}

// Read in glm4_moe.py:503, where SGLang does not load shared experts as routed ones.
constexpr std::string_view kUnfused = "--disable-shared-experts-fusion";
constexpr EngineLimit shared_weight(std::string_view family, SchemeId scheme) {
  return {.dialect = kCt,
          .scheme = scheme,
          .scope = kSharedExperts,
          .reason = "its class asks shared experts for a part weight, which is weight_packed here",
          .instead = "shared and routed experts alike without the option, or dialect modelopt",
          .option = kUnfused,
          .family = family,
          .effect = kRefusedOption};
}

constexpr std::string_view kWna16 = "--quantization moe_wna16";
constexpr std::string_view kScalesOfAllRanks =
    "on each rank it has room for the scales of all ranks, and its kernel takes their number for "
    "that of its own groups";
constexpr std::string_view kWholeExperts = "one rank, or whole experts on ranks (--ep-size)";

// Code of gptq_kernels.py:286 and awq_kernels.py:201 permutes scales of groups as those of rows
// there; that for compressed-tensors does not.
constexpr EngineLimit mixed_scales(std::string_view dialect) {
  return {.dialect = dialect,
          .scheme = kInt4Group,
          .scope = kWideGroups,
          .reason = "its Marlin mixes up the scales of such groups",
          .instead = kPackedInstead,
          .option = kWna16,
          .is_foreign = true,
          .effect = kGarbageWithout};
}

constexpr std::string_view kNoTile =
    "its Marlin has tiles for multiples of 64 outputs and 128 inputs, or 128 and 64, and fills "
    "none up (Invalid thread config)";
constexpr std::string_view kNoTileOfExperts =
    "its Marlin for experts has tiles for widths that are a multiple of 64, and hidden sizes of "
    "128 (Invalid thread config)";
constexpr std::string_view kPaddedInstead =
    "NVFP4 or forms with quantized activations; fewer ranks of tensor parallelism where there are "
    "several";

constexpr std::string_view kNoSuchParameter =
    "its loader of this family has no parameter of such a name (KeyError)";
constexpr std::string_view kNotFound =
    "its loader of this family passes over names that it does not know, and fills none of these "
    "weights";

constexpr std::array kLimits = {
    EngineLimit{kCt, kFp8Block, kWeightOnly, kAny,
                "it has no scheme for FP8 linears in blocks, and none for FP8 experts, without "
                "quantized activations",
                kDynamicInstead},
    EngineLimit{kCt, kFp8Channel, kWeightOnly, kExperts, kNoInputs, kDynamicInstead},
    EngineLimit{kCt, kFp8Tensor, kDynamic, kExperts,
                "scales of weights per tensor go with scales of activations per tensor",
                "dialect deepseek, or --activations static"},
    EngineLimit{kCt, kFp8Tensor, kWeightOnly, kExperts, kNoInputs,
                "dialect deepseek, or --activations static"},
    EngineLimit{kCt, kInt8Channel, kDynamic, kExperts,
                "its scheme of experts for compressed-tensors is for NPUs",
                "the same files with an option", "--quantization w8a8_int8"},
    EngineLimit{kCt, kInt8Channel, kWeightOnly, kAny,
                "for weight-only INT8 it loads only format pack-quantized", kDynamicInstead},
    EngineLimit{kCt, kInt8Channel, kStatic, kAny,
                "it makes room for one input scale where it joins weights", kDynamicInstead},
    EngineLimit{kCt, kMxfp4, std::nullopt, kLinears,
                "it has MXFP4 only for experts, and only for those of Kimi-K3", "nvfp4"},
    EngineLimit{.dialect = kCt,
                .scheme = kMxfp4,
                .scope = kExpertsButK3,
                .reason = "its loaders drop weight_packed, which MXFP4 experts call weight there, "
                          "and fill none",
                .instead = "nvfp4",
                .effect = kGarbage},
    EngineLimit{kCt, kMxfp8, std::nullopt, kAny, "it has no scheme for MXFP8 here", "fp8"},
    EngineLimit{kModelopt, kFp8Channel, std::nullopt, kAny,
                "it does not know quant_algo FP8_PER_CHANNEL_PER_TOKEN",
                "dialect compressed-tensors"},
    // Read in modelopt_quant.py:510.
    EngineLimit{kModelopt, kFp8Block, std::nullopt, kPlainNames,
                "it does not know quant_algo FP8_PB_WO, but for weight_scale_inv in mixtures",
                kNoBlocksOfModelopt},
    EngineLimit{kCt, kInt4Group, std::nullopt, kAsymmetricExperts,
                "it loads zero points of experts turned over, which compressed-tensors does not",
                "INT4 without --zero-points; codes that are kept: INT4 of another --group-size, "
                "which is encoded again"},
    EngineLimit{kCt, kInt4Group, std::nullopt, kJoinedLatents,
                "it joins them with their weight_shape, which has two numbers then",
                "these layers plain"},
    EngineLimit{kCt, kInt4Group, std::nullopt, kEmbeddings, "it builds the embedding plain",
                kPlainEmbedding},
    // Read in gptq.py:468 and gptq_linear.py:31: the kernel that took all these is gone.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kAsymmetric,
                "its kernels for GPTQ have no zero points (sym false)", kPackedInstead, "", "",
                true},
    EngineLimit{kGptq, kInt4Group, std::nullopt, kFewBits, "it takes GPTQ of 4 and 8 bits",
                kPackedInstead, "", "", true},
    EngineLimit{kGptq, kInt4Group, std::nullopt, kAutoRoundFewBits,
                "it takes GPTQ's packing of 4 and 8 bits", kPackedInstead, "", "", true},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kOddGroups, kMarlinGroups, kOddGroupsInstead, "",
                "", true},
    // Read in awq.py:109: such groups are not Marlin's, and its own kernel is for F16 and no
    // experts.
    EngineLimit{kAwq, kInt4Group, std::nullopt, kOddGroups,
                "its kernel for AWQ in such groups is for F16", kOddGroupsInstead,
                "--dtype float16", "", true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kOddGroupExperts,
                "its Marlin takes groups of 32, 64 or 128 columns, or rows, and AWQ's own kernel "
                "no experts",
                kOddGroupsInstead, "", "", true},
    // Read in awq.py:353: without zero points it is not Marlin's, and AWQ's own config is for F16
    // (:109) and builds experts plain (:163).
    EngineLimit{kAwq, kInt4Group, std::nullopt, kNoZeroPointsOfAwq,
                "its config for AWQ without zero points takes only F16", kPackedInstead,
                "--dtype float16", "", true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kNoZeroPointExperts,
                "it builds experts plain for AWQ without zero points", kPackedInstead, kWna16, "",
                true},
    EngineLimit{kAwq, kInt4Group, std::nullopt, kRowScaledExperts, kRowsOfAwq, kOddGroupsInstead,
                "", "", true},
    // Read in gptq_moe.py:190 to :230 and fused_marlin_moe.py:232.
    EngineLimit{.dialect = kGptq,
                .scheme = std::nullopt,
                .scope = kOwnRankGroups,
                .reason = kScalesOfAllRanks,
                .instead = kWholeExperts,
                .is_foreign = true,
                .effect = kGarbage},
    EngineLimit{.dialect = kGptq,
                .scheme = std::nullopt,
                .scope = kRankGroups,
                .reason = kScalesOfAllRanks,
                .instead = kWholeExperts,
                .option = kWna16,
                .is_foreign = true,
                .effect = kGarbageWithout},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kNotHalfExperts,
                "it keeps scales of GPTQ's experts in F16, and asserts that activations are in F16 "
                "too",
                kPackedInstead, "--dtype float16", "", true},
    mixed_scales(kGptq),
    mixed_scales(kAwq),
    // Read in moe_wna16.py:256.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kThinExperts, kNoSmallerGroups, kFewerRanks, "",
                "", true},
    EngineLimit{kAwq, std::nullopt, std::nullopt, kThinExperts, kNoSmallerGroups, kFewerRanks, "",
                "", true},
    // Read in BASE_QUANTIZATION_METHODS of quantization/__init__.py, and in modelopt_quant.py.
    EngineLimit{kGemma, kInt4Group, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kGemma, kInt8Channel, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kGemma, kInt8Block, std::nullopt, kAny, kNoMethodGemma, kQuarkInstead, "", "",
                true},
    EngineLimit{kModelopt, kInt4Group, std::nullopt, kAny, kNoInt4OfModelopt, kPackedInstead, "",
                "", true},
    EngineLimit{kQuark, kFp8Tensor, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "", true},
    EngineLimit{kQuark, kFp8Channel, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "",
                true},
    EngineLimit{kQuark, kFp8Block, kWeightOnly, kAny, kInputsOfQuark, kQuarkInstead, "", "", true},
    EngineLimit{kQuark, kInt8Channel, std::nullopt, kAny, "it has no scheme for Quark's INT8",
                kQuarkInstead, "", "", true},
    EngineLimit{kQuark, kMxfp8, std::nullopt, kAny, "it has no scheme for Quark's MXFP8",
                kQuarkInstead, "", "", true},
    // Read in quark_w4a4_mxfp4.py:162.
    EngineLimit{.dialect = kQuark,
                .scheme = kMxfp4,
                .activations = std::nullopt,
                .scope = kAny,
                .reason = "its kernels for Quark's MXFP4 are for AMD's cards only",
                .instead = "vLLM, or nvfp4, on others",
                .is_foreign = true,
                .effect = kRefusedOnCards},
    quark_fp8_on_cards(kFp8Tensor),
    quark_fp8_on_cards(kFp8Channel),
    quark_fp8_on_cards(kFp8Block),
    // Read in modelopt_quant.py:463; vLLM's begins with 8.0.
    EngineLimit{.dialect = kModelopt,
                .scheme = kFp8Tensor,
                .scope = kAny,
                .reason = "on cards below compute capability 8.9 it refuses FP8 of ModelOpt",
                .instead = "vLLM there",
                .effect = kRefusedOnCards},
    // Read in marlin_utils.py:79, gptq_linear.py:31 and awq.py:163.
    EngineLimit{.dialect = kGptq,
                .scheme = std::nullopt,
                .scope = kAny,
                .reason = "on cards below compute capability 8.0 it has no kernel for GPTQ",
                .instead = "vLLM there",
                .is_foreign = true,
                .effect = kRefusedOnCards},
    EngineLimit{.dialect = kAwq,
                .scheme = std::nullopt,
                .scope = kExperts,
                .reason = "on cards below compute capability 8.0 it builds experts of AWQ plain",
                .instead = "vLLM there",
                .is_foreign = true,
                .effect = kRefusedOnCards},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kCutGroups, kGroupOnRanks, kFewerRanks, "", "",
                true},
    EngineLimit{kAwq, std::nullopt, std::nullopt, kCutGroups, kGroupOnRanks, kFewerRanks, "", "",
                true},
    // Read in gptq_kernels.py:110 and marlin_utils_fp8.py:131: the answer of
    // check_marlin_supports_shape() is not looked at. AWQ falls back to a kernel of its own.
    EngineLimit{kGptq, std::nullopt, std::nullopt, kUntiled, kNoTile, kPaddedInstead, "", "", true},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kUntiledExperts, kNoTileOfExperts,
                kPaddedInstead, "", "", true},
    EngineLimit{kGptq, std::nullopt, std::nullopt, kUntiledOfMarlin, kNoTileOfExperts,
                kPaddedInstead, kWna16, "", true},
    EngineLimit{kCt, kInt4Group, std::nullopt, kUntiled, kNoTile, kPaddedInstead},
    EngineLimit{kCt, kInt4Group, std::nullopt, kUntiledExperts, kNoTileOfExperts, kPaddedInstead},
    EngineLimit{kCt, kInt4Group, std::nullopt, kUntiledOfMarlin, kNoTileOfExperts, kPaddedInstead,
                "--moe-runner-backend triton"},
    EngineLimit{kCt, kFp8Channel, kWeightOnly, kUntiled, kNoTile, kPaddedInstead},
    EngineLimit{kCt, kFp8Tensor, kWeightOnly, kUntiled, kNoTile, kPaddedInstead},
    // Read in marlin_utils_fp4.py:483: it fills up linears, but no experts with gates.
    EngineLimit{.dialect = kAnyDialect,
                .scheme = kNvfp4,
                .scope = kUntiledExperts,
                .reason = "on cards before Blackwell its Marlin for experts has tiles for widths "
                          "that are a multiple of 64, and hidden sizes of 128",
                .instead = "vLLM there",
                .effect = kRefusedOnCards},
    // Read in models/llama.py:721.
    EngineLimit{kDeepseek, kFp8Tensor, kStatic, kInverseNames, kNamesOfOthers,
                "dialect compressed-tensors", "", "", true},
    EngineLimit{kAnyDialect, kFp8Block, std::nullopt, kCutBlocks, kWholeBlocks, kOtherBlocks},
    EngineLimit{kDeepseek, kFp8Block, std::nullopt, kAny,
                "its loader renames weight_scale_inv, since releases have one number a tensor",
                "fp8-channel", "", "ministral3"},
    // Read in models/gpt_oss.py:1143.
    EngineLimit{.dialect = kAnyDialect,
                .scheme = std::nullopt,
                .scope = kForeignExperts,
                .reason = "its loader of gpt-oss knows experts as stacks, drops single ones and "
                          "their biases, and fills none",
                .instead = "--to mxfp4, or these stacks plain",
                .family = "gpt_oss",
                .effect = kGarbage},
    unfilled("llama", kFp8Block, "dialect compressed-tensors"),
    unfilled("llama", kInt8Block, "int8 of compressed-tensors"),
    unfilled("mistral", kFp8Block, "dialect compressed-tensors"),
    unfilled("mistral", kInt8Block, "int8 of compressed-tensors"),
    EngineLimit{
        kAnyDialect, kNvfp4, std::nullopt, kAny,
        "it builds joined layers of the vision tower quantized, also if the list names them",
        "fp8-channel", "", "ministral3"},
    EngineLimit{.dialect = kAnyDialect,
                .scheme = std::nullopt,
                .scope = kFusedOtherwise,
                .reason = "it loads shared experts as further routed ones, and drops or casts "
                          "what is stored otherwise",
                .instead = "shared experts in the scheme of the routed ones",
                .option = kUnfused,
                .effect = kGarbageWithout},
    // Read in models/qwen3_moe.py: Qwen3MoeDecoderLayer.stage_facts() and load_weights().
    EngineLimit{.dialect = kAnyDialect,
                .scheme = std::nullopt,
                .scope = kDenseLayers,
                .reason = "its class builds every layer with experts, whatever mlp_only_layers and "
                          "decoder_sparse_step say, and drops the weights of the others",
                .instead = "vLLM",
                .family = "qwen3_moe",
                .effect = kGarbage},
    // Read in models/qwen3_vl_moe.py:320 and models/mllama4.py:920.
    EngineLimit{kAnyDialect, std::nullopt, std::nullopt, kTurnedStacks, kOneOrder, kUsualOrder},
    // Read in deepseek_common/deepseek_weight_loader.py: do_load_weights, kimi_linear.py and
    // deepseek_v4.py: load_weights.
    unlike_release(kOtherNames, "kimi_k2", kRefused, kNoSuchParameter),
    unlike_release(kOtherNames, "kimi_linear", kRefused, kNoSuchParameter),
    unlike_release(kOtherNames, "deepseek_v4", kGarbage, kNotFound),
    unlike_release(kOtherNames, "hy_v4", kGarbage, kNotFound),
    // Read in load_weights() of the family's class.
    unlike_release(kStacks, "longcat_flash", kGarbage, kNotFound),
    unlike_release(kStacks, "qwen3_moe", kGarbage, kNotFound),
    unlike_release(kStacks, "qwen2_moe", kGarbage, kNotFound),
    unlike_release(kStacks, "exaone_moe", kGarbage, kNotFound),
    unlike_release(kStacks, "ernie4_5_moe", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "hy_v3", kGarbage, kNotFound),
    unlike_release(kStacks, "glm4_moe", kGarbage, kNotFound),
    unlike_release(kStacks, "glm4v_moe", kGarbage, kNotFound),
    unlike_release(kStacks, "qwen3_next", kRefused, kNoSuchParameter),
    unlike_release(kStacks, "hunyuan_v1_moe", kRefused, kNoSuchParameter),
    // The option is for model and draft.
    EngineLimit{.dialect = kAnyDialect,
                .scheme = std::nullopt,
                .scope = kFusedInDraft,
                .reason = "its draft model loads shared experts as further routed ones, and drops "
                          "or casts what is stored otherwise",
                .instead = "shared experts of the MTP layer in the scheme of its routed ones",
                .option = kUnfused,
                .effect = kGarbageWithout},
    shared_weight("glm4_moe", kNvfp4),
    shared_weight("glm4_moe", kInt4Group),
    shared_weight("glm4v_moe", kNvfp4),
    shared_weight("glm4v_moe", kInt4Group),
    EngineLimit{kCt, kInt4Group, std::nullopt, kExperts,
                "its class builds shared_mlp quantized, also if the ignore list names it",
                "nvfp4, or int8 or fp8-channel", "", "hunyuan_v1_moe"},
};

constexpr std::array kFamilies = {
    EngineFamily{"deepseek_v3", kOnGpu, kSglangsEight},
    EngineFamily{"deepseek_v32", kReplaced, kSglangsEight},
    EngineFamily{"ernie4_5_moe", kReplaced, {kBf16, kFp8Channel, kNvfp4, kInt4Group}},
    EngineFamily{"gemma3", kReplaced, kSglangsEight},
    EngineFamily{"glm4_moe", kOnGpu, kSeven},
    EngineFamily{"glm4_moe_lite", kReplaced, kSix},
    EngineFamily{"glm_moe_dsa", kReplaced, kSglangsEight},
    EngineFamily{"gpt_oss", kOnGpu, {kMxfp4}},
    EngineFamily{"hunyuan_v1_moe", kReplaced, kSix},
    EngineFamily{"kimi_k2", kReplaced, kSix},
    EngineFamily{"llama", kOnGpu, kSeven},
    EngineFamily{"llama4", kReplaced, kFive},
    EngineFamily{"minimax_m2", kReplaced, kSix},
    EngineFamily{"ministral3", kReplaced, {kBf16, kFp8Channel}},
    EngineFamily{"mistral", kReplaced, kSeven},
    EngineFamily{"mixtral", kReplaced, kSglangsEight},
    EngineFamily{"qwen3", kOnGpu, kSglangsEight},
    EngineFamily{"qwen3_moe", kOnGpu, kSglangsEight},
    EngineFamily{"beam", kRead, {kBf16}},
    EngineFamily{"cohere2_moe", kRead, {kBf16}},
    EngineFamily{"dots3_note", kRead, {kBf16}},
    EngineFamily{"exaone", kRead, {kBf16}},
    EngineFamily{"gigachat3_5", kRead, {kBf16}},
    EngineFamily{"interns2_mobius", kRead, {kBf16}},
    EngineFamily{"k2_horizon", kRead, {kBf16}},
    EngineFamily{"muse_glimmer", kRead, {kBf16}},
    EngineFamily{"muse_spark", kRead, {kBf16}},
    EngineFamily{"sarvam_mla", kRead, {kBf16}},
    EngineFamily{"sarvam_moe", kRead, {kBf16}},
    EngineFamily{"zaya", kRead, {kBf16}},
};

// Read in kimi_k25.py:646, and in remap_weight_name_to_dpsk_hf_format() of deepseek_v4.py.
constexpr std::array kNames = {
    EngineNames{"kimi_k2", "language_model.layers."},
    EngineNames{"deepseek_v4", "model.layers."},
    EngineNames{"deepseek_v4", "model.norm."},
    EngineNames{"deepseek_v4", "model.embed_tokens."},
};

// Stacks of releases, and those of deepseek_common/deepseek_weight_loader.py:176.
constexpr std::array<std::string_view, 20> kStackFamilies = {
    "dbrx",     "deepseek_v2", "deepseek_v2_mha", "deepseek_v3", "deepseek_v32",
    "gemma4",   "glm_moe_dsa", "gpt_oss",         "granitemoe",  "granitemoehybrid",
    "hy_v4",    "inkling",     "jetmoe",          "kimi_k2",     "llama4",
    "mistral4", "qwen3_5_moe", "qwen3_vl_moe",    "qwen4_exp",   "step3p7"};

constexpr std::array kPins = {EnginePin{"compressed-tensors", "0.18.0"}};

// Names of models/registry.py, by EntryClass; Gemma3TextModel is EmbeddingGemma
// (configs/model_config.py:2348). For any other it takes transformers' model, which ignores
// `score.` and `classifier.` (models/transformers.py:589), as one that generates unless
// --is-embedding is given.
constexpr std::array<std::string_view, 26> kPoolingClasses = {"BertForSequenceClassification",
                                                              "BertModel",
                                                              "CLIPModel",
                                                              "ChatGLMModel",
                                                              "Contriever",
                                                              "EmbeddingGemma2Model",
                                                              "EmbeddingGemmaModel",
                                                              "Gemma2ForSequenceClassification",
                                                              "Gemma3TextModel",
                                                              "InternLM2ForRewardModel",
                                                              "InternVLChatModel",
                                                              "Lfm2BidirectionalModel",
                                                              "LlamaEmbeddingModel",
                                                              "LlamaForClassification",
                                                              "LlamaForSequenceClassification",
                                                              "MiDashengLMModel",
                                                              "MistralModel",
                                                              "NanbeigeForSequenceClassification",
                                                              "POINTSV15ChatModel",
                                                              "Qwen2ForRewardModel",
                                                              "Qwen2ForSequenceClassification",
                                                              "Qwen3ForRewardModel",
                                                              "Qwen3ForSequenceClassification",
                                                              "Qwen3Model",
                                                              "XLMRobertaForSequenceClassification",
                                                              "XLMRobertaModel"};

}  // namespace

const EngineRow kSglangRow = {
    .engine = Engine::kSglang,
    .word = "sglang",
    .version = "0.5.23",
    .name = "SGLang 0.5.23",
    .is_judged = true,
    .command = "python -m sglang.launch_server --model-path",
    .ranks_option = "--tp",
    .code_option = "--trust-remote-code",
    .ids_option = "--skip-tokenizer-init",
    .pooling_classes = kPoolingClasses,
    .pooling_option = "--is-embedding",
    .loads = kLoads,
    .limits = kLimits,
    .families = kFamilies,
    .names = kNames,
    .stacks = kStackFamilies,
    .pins = kPins,
};

}  // namespace ingot::engines
