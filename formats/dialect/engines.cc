#include "formats/dialect/engines.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/error.h"

namespace ingot::formats {
namespace {

using enum Activations;
using enum Engine;
using enum Evidence;
using enum SchemeId;

constexpr std::array kEngines = {
    EngineFacts{.engine = kVllm,
                .word = "vllm",
                .name = "vLLM 0.32",
                .is_judged = true,
                .before = "vllm serve",
                .ranks_option = "--tensor-parallel-size"},
    EngineFacts{.engine = kSglang,
                .word = "sglang",
                .name = "SGLang 0.5.23",
                .is_judged = true,
                .before = "python -m sglang.launch_server --model-path",
                .ranks_option = "--tp"},
    EngineFacts{.engine = kTrtllm,
                .word = "trtllm",
                .name = "TensorRT-LLM",
                .before = "trtllm-serve",
                .ranks_option = "--tp_size"},
    EngineFacts{.engine = kVllmAscend,
                .word = "vllm-ascend",
                .name = "vLLM-Ascend",
                .before = "vllm serve",
                .ranks_option = "--tensor-parallel-size"},
    EngineFacts{.engine = kTransformers,
                .word = "transformers",
                .name = "transformers 5",
                .before = "python -c \"import sys, transformers as t; "
                          "t.AutoModelForCausalLM.from_pretrained(sys.argv[1], "
                          "device_map='auto')\"",
                .ranks_option = ""},
};
static_assert(rows_match_enum(kEngines, &EngineFacts::engine, kTransformers));

constexpr std::string_view kAny = "";
constexpr std::string_view kCt = "compressed-tensors";
constexpr std::string_view kModelopt = "modelopt";
constexpr std::string_view kModelslim = "modelslim";
constexpr std::string_view kDeepseek = "deepseek";
constexpr std::string_view kMxfp4Stacks = "mxfp4";
// Routed experts of DeepSeek-V4 beside FP8 in blocks.
constexpr std::string_view kV4OfVllm = "vllm/models/deepseek_v4/quant_config.py";
constexpr std::string_view kV4OfSglang =
    "python/sglang/srt/layers/quantization/modelopt_quant.py: HybridFp8NvFp4Config";
constexpr std::string_view kV4Fp4OfSglang =
    "python/sglang/srt/model_loader/loader.py: is_fp4_experts";
constexpr std::string_view kAscend = "--quantization ascend";
constexpr std::string_view kOfAscend =
    "vllm_ascend/quantization/configs/modelslim_config.py: get_quant_type_for_layer (0095630)";
constexpr std::string_view kFlatOfTrtllm =
    "tensorrt_llm/_torch/model_config.py: load_hf_quant_config (008e0af)";
constexpr std::string_view kModeloptOfTrtllm =
    "tensorrt_llm/_torch/model_config.py: _build_modelopt_quant_config (008e0af)";

// docs/engines.md says how vLLM, SGLang and transformers were tried.
constexpr std::array kLoads = {
    EngineLoad{kVllm, kAny, kBf16, {}, kGenerated},
    EngineLoad{kVllm, kAny, kF32, {}, kGenerated},
    EngineLoad{kVllm, kAny, kF16, {}, kLoaded},
    EngineLoad{kVllm, kDeepseek, kFp8Block, kDynamic, kGenerated},
    EngineLoad{kVllm, kCt, kFp8Block, kDynamic, kGenerated},
    EngineLoad{kVllm, kCt, kFp8Channel, kDynamic, kGenerated},
    EngineLoad{kVllm, kCt, kFp8Channel, kWeightOnly, kLoaded},
    EngineLoad{kVllm, kModelopt, kFp8Channel, kDynamic, kLoaded},
    EngineLoad{kVllm, kModelopt, kFp8Block, kDynamic, kRead, "",
               "vllm/model_executor/layers/quantization/modelopt.py:2213"},
    EngineLoad{kVllm, kDeepseek, kFp8Tensor, kDynamic, kGenerated},
    EngineLoad{kVllm, kCt, kFp8Tensor, kStatic, kGenerated},
    EngineLoad{kVllm, kModelopt, kFp8Tensor, kStatic, kGenerated},
    EngineLoad{kVllm, kCt, kFp8Tensor, kDynamic, kReplaced},
    EngineLoad{kVllm, kCt, kFp8Tensor, kWeightOnly, kReplaced},
    EngineLoad{kVllm, kDeepseek, kFp8Tensor, kStatic, kRead, "",
               "vllm/model_executor/layers/quantization/fp8.py:345"},
    EngineLoad{kVllm, kCt, kInt8Channel, kDynamic, kGenerated},
    EngineLoad{kVllm, kCt, kInt8Channel, kStatic, kReplaced},
    EngineLoad{kVllm, kCt, kInt4Group, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kCt, kNvfp4, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kCt, kNvfp4, kStatic, kGenerated},
    EngineLoad{kVllm, kModelopt, kNvfp4, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kModelopt, kNvfp4, kStatic, kGenerated},
    EngineLoad{kVllm, kCt, kMxfp4, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kMxfp4Stacks, kMxfp4, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kDeepseek, kMxfp4, kWeightOnly, kRead, "", kV4OfVllm},
    EngineLoad{kVllm, kDeepseek, kNvfp4, kStatic, kRead, "", kV4OfVllm},
    EngineLoad{kVllm, kCt, kMxfp8, kWeightOnly, kGenerated},
    EngineLoad{kVllm, kCt, kMxfp8, kDynamic, kGenerated},

    EngineLoad{kSglang, kAny, kBf16, {}, kReplaced},
    EngineLoad{kSglang, kAny, kF32, {}, kReplaced},
    EngineLoad{kSglang, kAny, kF16, {}, kReplaced},
    EngineLoad{kSglang, kDeepseek, kFp8Block, kDynamic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Block, kDynamic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Channel, kDynamic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Channel, kWeightOnly, kReplaced},
    EngineLoad{kSglang, kDeepseek, kFp8Tensor, kDynamic, kReplaced},
    EngineLoad{kSglang, kModelopt, kFp8Tensor, kStatic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Tensor, kStatic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Tensor, kDynamic, kReplaced},
    EngineLoad{kSglang, kCt, kFp8Tensor, kWeightOnly, kReplaced},
    EngineLoad{kSglang, kDeepseek, kFp8Tensor, kStatic, kRead, "",
               "python/sglang/srt/layers/quantization/fp8.py:712"},
    EngineLoad{kSglang, kCt, kInt8Channel, kDynamic, kReplaced},
    EngineLoad{kSglang, kModelslim, kInt8Channel, kDynamic, kNotTried},
    EngineLoad{kSglang, kModelslim, kInt8Channel, kStatic, kNotTried},
    EngineLoad{kSglang, kDeepseek, kInt8Block, kDynamic, kReplaced},
    EngineLoad{kSglang, kCt, kInt4Group, kWeightOnly, kReplaced},
    EngineLoad{kSglang, kCt, kNvfp4, kWeightOnly, kReplaced},
    EngineLoad{kSglang, kCt, kNvfp4, kStatic, kReplaced},
    EngineLoad{kSglang, kModelopt, kNvfp4, kWeightOnly, kReplaced},
    EngineLoad{kSglang, kModelopt, kNvfp4, kStatic, kReplaced},
    EngineLoad{kSglang, kCt, kMxfp4, kWeightOnly, kRead, "",
               "python/sglang/srt/models/kimi_k3.py:3207"},
    EngineLoad{kSglang, kDeepseek, kMxfp4, kWeightOnly, kRead, "", kV4Fp4OfSglang},
    EngineLoad{kSglang, kDeepseek, kNvfp4, kStatic, kRead, "", kV4OfSglang},

    EngineLoad{kTrtllm, kAny, kBf16, {}, kNotTried},
    EngineLoad{kTrtllm, kAny, kF16, {}, kNotTried},
    EngineLoad{kTrtllm, kDeepseek, kFp8Block, kDynamic, kRead, "", kFlatOfTrtllm},
    EngineLoad{kTrtllm, kModelopt, kFp8Tensor, kStatic, kRead, "", kModeloptOfTrtllm},
    EngineLoad{kTrtllm, kModelopt, kNvfp4, kStatic, kRead, "", kModeloptOfTrtllm},

    EngineLoad{kVllmAscend, kAny, kBf16, {}, kNotTried},
    EngineLoad{kVllmAscend, kAny, kF16, {}, kNotTried},
    EngineLoad{kVllmAscend, kModelslim, kInt8Channel, kDynamic, kRead, kAscend, kOfAscend},
    EngineLoad{kVllmAscend, kModelslim, kInt8Channel, kStatic, kRead, kAscend, kOfAscend},

    EngineLoad{kTransformers, kAny, kBf16, {}, kGenerated},
    EngineLoad{kTransformers, kAny, kF32, {}, kGenerated},
    EngineLoad{kTransformers, kAny, kF16, {}, kGenerated},
    EngineLoad{kTransformers, kDeepseek, kFp8Block, kDynamic, kGenerated},
    EngineLoad{kTransformers, kMxfp4Stacks, kMxfp4, kWeightOnly, kRead, "",
               "src/transformers/integrations/mxfp4.py:111"},
    EngineLoad{kTransformers, kCt, kFp8Block, kDynamic, kNotTried},
    EngineLoad{kTransformers, kCt, kFp8Channel, kDynamic, kGenerated},
    EngineLoad{kTransformers, kCt, kInt8Channel, kDynamic, kNotTried},
    EngineLoad{kTransformers, kCt, kInt4Group, kWeightOnly, kGenerated},
    EngineLoad{kTransformers, kCt, kNvfp4, kWeightOnly, kNotTried},
    EngineLoad{kTransformers, kCt, kMxfp4, kWeightOnly, kGenerated},
};

}  // namespace

std::string_view evidence_text(Evidence evidence) {
  constexpr std::array<std::string_view, 6> kTexts = {"generated text",
                                                      "loaded",
                                                      "loaded, kernels replaced",
                                                      "read in its source",
                                                      "not tried for this family",
                                                      "not tried"};
  return kTexts[static_cast<std::size_t>(evidence)];
}

std::span<const EngineFacts> engines() {
  return kEngines;
}

const EngineFacts& engine_facts(Engine engine) {
  return kEngines[static_cast<std::size_t>(engine)];
}

std::string_view engine_name(Engine engine) {
  return engine_facts(engine).name;
}

std::optional<Engine> find_engine(std::string_view word) {
  for (const EngineFacts& row : kEngines) {
    if (row.word == word) return row.engine;
  }
  return std::nullopt;
}

Engine engine_of(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view word = text.substr(0, colon);
  const std::optional<Engine> engine = find_engine(word);
  if (!engine) {
    std::vector<std::string_view> words;
    for (const EngineFacts& row : kEngines) words.push_back(row.word);
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("'{}' is no engine (known: {})", word, fmt::join(words, ", ")));
  }
  const std::string_view name = engine_name(*engine);
  if (colon != std::string_view::npos &&
      (name.size() <= text.size() - colon || name.substr(name.size() - (text.size() - colon)) !=
                                                 " " + std::string(text.substr(colon + 1)))) {
    throw Error(ErrorCode::kUnsupported, fmt::format("what is known is of {}, not of version '{}'",
                                                     name, text.substr(colon + 1)));
  }
  return *engine;
}

std::span<const EngineLoad> engine_loads() {
  return kLoads;
}

const EngineLoad* find_load(Engine engine, const Dialect& dialect, SchemeId scheme,
                            Activations activations) {
  const auto* const row = std::find_if(kLoads.begin(), kLoads.end(), [&](const EngineLoad& load) {
    if (load.engine != engine || load.scheme != scheme) return false;
    return load.dialect.empty() ||
           (load.dialect == dialect.name && load.activations == activations);
  });
  return row == kLoads.end() ? nullptr : row;
}

}  // namespace ingot::formats
