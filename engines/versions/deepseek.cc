#include "engines/versions/versions.h"
#include "engines/versions/words.h"

// DeepSeek's convert.py, which cuts a checkpoint for the ranks of its generate.py: read in its
// source as published with the weights of V3 and V3.2. It was never run.

namespace ingot::engines {
namespace {

constexpr std::string_view kConvert = "inference/convert.py: main (of DeepSeek-V3, V3.2)";

constexpr std::array kLoads = {
    EngineLoad{kAnyDialect, kBf16, {}, kNotTried},
    EngineLoad{kDeepseek, kFp8Block, kDynamic, kRead, "", kConvert},
};

constexpr std::array<std::string_view, 2> kWrittenFor = {"deepseek_v3", "deepseek_v32"};

constexpr std::array kFamilies = {
    EngineFamily{"deepseek_v3", kRead, {kFp8Block}},
    EngineFamily{"deepseek_v32", kRead, {kFp8Block}},
};

}  // namespace

const EngineRow kDeepseekRow = {
    .engine = Engine::kDeepseek,
    .word = "deepseek",
    .version = "",
    .name = "DeepSeek's convert.py",
    .command = "",
    .ranks_option = "",
    .code_option = "",
    .loads = kLoads,
    .limits = {},
    .families = kFamilies,
    .written_for = kWrittenFor,
};

}  // namespace ingot::engines
