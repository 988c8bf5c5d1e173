#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// vLLM-Ascend 0.23: read in its source. It was never run.

namespace ingot::engines {
namespace {

constexpr std::string_view kAscend = "--quantization ascend";
constexpr std::string_view kOfAscend = "vllm_ascend/quantization/modelslim_config.py:417";

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kNotTried},
    EngineLoad{kAnyDialect, kF16, {}, kNotTried},
    EngineLoad{kModelslim, kInt8Channel, kDynamic, kRead, kAscend, kOfAscend},
    EngineLoad{kModelslim, kInt8Channel, kStatic, kRead, kAscend, kOfAscend},
};

// Code of quantization/methods/ registers W8A8 for linear layers, and for experts W8A8_DYNAMIC
// only.
constexpr std::array kLimits = {
    EngineLimit{kModelslim, kInt8Channel, kStatic, kExperts,
                "its experts have INT8 only with a scale of activations per token",
                kDynamicInstead},
};

}  // namespace

const EngineRow kVllmAscendRow = {
    .engine = Engine::kVllmAscend,
    .word = "vllm-ascend",
    .version = "0.23.0.post1",
    .name = "vLLM-Ascend 0.23.0.post1",
    .command = "vllm serve",
    .ranks_option = "--tensor-parallel-size",
    .code_option = "--trust-remote-code",
    .ids_option = "--skip-tokenizer-init",
    .loads = kLoads,
    .limits = kLimits,
    .families = {},
};

}  // namespace ingot::engines
