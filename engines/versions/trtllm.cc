#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// TensorRT-LLM: read in its source. It was never run.

namespace ingot::engines {
namespace {

constexpr std::string_view kFlatOfTrtllm =
    "tensorrt_llm/_torch/model_config.py: load_hf_quant_config (008e0af)";
constexpr std::string_view kModeloptOfTrtllm =
    "tensorrt_llm/_torch/model_config.py: _build_modelopt_quant_config (008e0af)";

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kNotTried},
    EngineLoad{kAnyDialect, kF16, {}, kNotTried},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kRead, "", kFlatOfTrtllm},
    EngineLoad{kModelopt, kFp8Tensor, kStatic, kRead, "", kModeloptOfTrtllm},
    EngineLoad{kModelopt, kNvfp4, kStatic, kRead, "", kModeloptOfTrtllm},
};

}  // namespace

const EngineRow kTrtllmRow = {
    .engine = Engine::kTrtllm,
    .word = "trtllm",
    .version = "",
    .name = "TensorRT-LLM",
    .command = "trtllm-serve",
    .ranks_option = "--tp_size",
    .code_option = "--trust_remote_code",
    .loads = kLoads,
    .limits = {},
    .families = {},
};

}  // namespace ingot::engines
