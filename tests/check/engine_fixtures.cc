#include "tests/check/rule_fixture.h"

namespace ingot::testing {

using enum formats::Activations;
using enum formats::SchemeId;
using enum ErrorCode;

namespace {

constexpr const char* kCt = "compressed-tensors";

/// Experts as they were, everything else as `spelled` says.
EditableCheckpoint make_with_plain_experts(const Spelled& spelled) {
  EditableCheckpoint checkpoint = make_spelled(spelled);
  const EditableCheckpoint plain = make_plain();
  for (const auto& [name, tensor] : plain.tensors) {
    if (name.find(".experts.") == std::string::npos) continue;
    make_weight_plain(checkpoint, name);
  }
  quantization(checkpoint)["ignore"].push_back("re:.*\\.experts\\..*");
  return checkpoint;
}

}  // namespace

std::vector<RuleFixture> engine_fixtures() {
  return {
      {.rule = "engine.refused-by-all",
       .code = kUnsupported,
       .make = spelled(kCt, kFp8Tensor, kDynamic)},
      {.rule = "engine.refused-by-all",
       .code = kUnsupported,
       .make = spelled(kCt, kInt8Channel, kStatic)},
      // One engine by its experts, the other by all that is not.
      {.rule = "engine.refused-by-all",
       .code = kUnsupported,
       .make = spelled("modelopt", kFp8Channel, kDynamic),
       .also = {"modelopt.algo-of-sglang"}},
      {.rule = "engine.refused-by-vllm",
       .code = kUnsupported,
       .make = spelled("deepseek", kInt8Block, kDynamic)},
      {.rule = "engine.refused-by-sglang",
       .code = kUnsupported,
       .make = spelled(kCt, kMxfp4, kWeightOnly)},
      // It loads with an option, whoever else refuses.
      {.rule = "engine.refused-by-sglang",
       .code = kUnsupported,
       .make = spelled(kCt, kInt8Channel, kDynamic)},
      // vLLM refuses experts of this kind, and there are none.
      {.rule = "engine.refused-by-sglang",
       .code = kUnsupported,
       .make =
           [] {
             return make_with_plain_experts({kCt, kFp8Block, kWeightOnly});
           }},
  };
}

}  // namespace ingot::testing
