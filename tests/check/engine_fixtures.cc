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
      {"engine.refused-by-all", kUnsupported, spelled(kCt, kFp8Tensor, kDynamic)},
      {"engine.refused-by-all", kUnsupported, spelled(kCt, kInt8Channel, kStatic)},
      // One engine by its experts, the other by all that is not.
      {"engine.refused-by-all",
       kUnsupported,
       spelled("modelopt", kFp8Channel, kDynamic),
       {},
       {"modelopt.algo-of-sglang"}},
      {"engine.refused-by-vllm", kUnsupported, spelled("deepseek", kInt8Block, kDynamic)},
      {"engine.refused-by-sglang", kUnsupported, spelled(kCt, kMxfp4, kWeightOnly)},
      // It loads with an option, whoever else refuses.
      {"engine.refused-by-sglang", kUnsupported, spelled(kCt, kInt8Channel, kDynamic)},
      // vLLM refuses experts of this kind, and there are none.
      {"engine.refused-by-sglang", kUnsupported,
       [] {
         return make_with_plain_experts({kCt, kFp8Block, kWeightOnly});
       }},
  };
}

}  // namespace ingot::testing
