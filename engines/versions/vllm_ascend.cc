#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// vLLM-Ascend: read in its source. It was never run.

namespace ingot::engines {
namespace {

constexpr std::string_view kAscend = "--quantization ascend";
constexpr std::string_view kOfAscend =
    "vllm_ascend/quantization/configs/modelslim_config.py: get_quant_type_for_layer (0095630)";

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kNotTried},
    EngineLoad{kAnyDialect, kF16, {}, kNotTried},
    EngineLoad{kModelslim, kInt8Channel, kDynamic, kRead, kAscend, kOfAscend},
    EngineLoad{kModelslim, kInt8Channel, kStatic, kRead, kAscend, kOfAscend},
};

}  // namespace

const EngineRow kVllmAscendRow = {
    .engine = Engine::kVllmAscend,
    .word = "vllm-ascend",
    .version = "",
    .name = "vLLM-Ascend",
    .command = "vllm serve",
    .ranks_option = "--tensor-parallel-size",
    .code_option = "--trust-remote-code",
    .ids_option = "--skip-tokenizer-init",
    .loads = kLoads,
    .limits = {},
    .families = {},
};

}  // namespace ingot::engines
