#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// TensorRT-LLM: neither run nor read. PyPI has a program that fetches it from elsewhere, and no
// package.

namespace ingot::engines {
namespace {

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kNotRead},
    EngineLoad{kAnyDialect, kF16, {}, kNotRead},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kNotRead},
    EngineLoad{kModelopt, kFp8Tensor, kStatic, kNotRead},
    EngineLoad{kModelopt, kNvfp4, kStatic, kNotRead},
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
