#include "engines/versions/loaders.h"

#include <array>

namespace ingot::engines {

namespace {

constexpr std::string_view kVllmWeights = "vllm/model_executor/model_loader/weight_utils.py";
constexpr std::string_view kVllmSharded =
    "vllm/model_executor/model_loader/sharded_state_loader.py";
constexpr std::string_view kSglangLoader = "sglang/srt/model_loader/loader.py";
constexpr std::string_view kSglangWeights = "sglang/srt/model_loader/weight_utils.py";
constexpr std::string_view kExpertFilter = "--enable-ep-weight-filter";

constexpr std::array kLoaders = {
    Loader{.engine = Engine::kVllm,
           .name = "lazy",
           .option = "",
           .unit = LoadUnit::kPages,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "lazy, own experts",
           .option = kExpertFilter,
           .unit = LoadUnit::kPages,
           .skips_experts = true,
           .source = "vllm/model_executor/model_loader/ep_weight_filter.py"},
    Loader{.engine = Engine::kVllm,
           .name = "eager",
           .option = "--safetensors-load-strategy eager",
           .unit = LoadUnit::kFiles,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "prefetch",
           .option = "--safetensors-load-strategy prefetch",
           .unit = LoadUnit::kFileShare,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "fastsafetensors",
           .option = "--load-format fastsafetensors",
           .unit = LoadUnit::kFileShare,
           .broadcasts = true,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "instanttensor",
           .option = "--load-format instanttensor",
           .unit = LoadUnit::kByteShare,
           .broadcasts = true,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "instanttensor, own experts",
           .option = "--load-format instanttensor --enable-ep-weight-filter",
           .unit = LoadUnit::kTensors,
           .skips_experts = true,
           .source = kVllmWeights},
    Loader{.engine = Engine::kVllm,
           .name = "rank files",
           .option = "--load-format sharded_state",
           .unit = LoadUnit::kOwnFiles,
           .layout = "vllm-sharded",
           .source = kVllmSharded},
    Loader{.engine = Engine::kSglang,
           .name = "maps",
           .option = "",
           .unit = LoadUnit::kPages,
           .skips_files = false,
           .source = kSglangWeights},
    Loader{.engine = Engine::kSglang,
           .name = "whole files",
           .option = "--weight-loader-disable-mmap",
           .unit = LoadUnit::kFiles,
           .skips_files = false,
           .source = kSglangWeights},
    Loader{.engine = Engine::kSglang,
           .name = "prefetch",
           .option = "--weight-loader-prefetch-checkpoints",
           .unit = LoadUnit::kFileShare,
           .skips_files = false,
           .source = kSglangLoader},
    Loader{.engine = Engine::kSglang,
           .name = "fastsafetensors",
           .option = "--load-format fastsafetensors",
           .unit = LoadUnit::kFileShare,
           .skips_files = false,
           .broadcasts = true,
           .source = kSglangWeights},
    Loader{.engine = Engine::kSglang,
           .name = "rank files",
           .option = "--load-format sharded_state",
           .unit = LoadUnit::kOwnFiles,
           .layout = "sglang-sharded",
           .source = kSglangLoader},
};

}  // namespace

std::span<const Loader> loaders() {
  return kLoaders;
}

}  // namespace ingot::engines
