#pragma once

#include <functional>
#include <set>
#include <string_view>
#include <vector>

#include "check/rules/loader_rules.h"
#include "tests/check/spelled_checkpoint.h"

namespace ingot::testing {

/// A checkpoint that violates one row of the loader rules and no other.
struct RuleFixture {
  std::string_view rule;
  ErrorCode code{};
  std::function<EditableCheckpoint()> make;
  std::function<void(EditableCheckpoint&)> damage =
      nullptr;                           ///< null: what `make` gives violates it
  std::set<std::string_view> also = {};  ///< rows that cannot but complain too
  std::uint64_t tensor_parallel = 1;
};

std::vector<RuleFixture> native_fixtures();              ///< DeepSeek's own blocks
std::vector<RuleFixture> scheme_fixtures();              ///< INT8, NVFP4, MX, whatever the dialect
std::vector<RuleFixture> compressed_tensors_fixtures();  ///< its config
std::vector<RuleFixture> modelopt_fixtures();
std::vector<RuleFixture> modelslim_fixtures();
std::vector<RuleFixture> engine_fixtures();  ///< what engines refuse of schemes and activations
std::vector<RuleFixture> model_fixtures();   ///< container, layers, experts

/// All of them.
std::vector<RuleFixture> rule_fixtures();

/// As `ingot synth` writes it, in DeepSeek's FP8 blocks.
inline EditableCheckpoint make_fp8() {
  return make_synthetic();
}

/// Makes an FP8 weight plain, as a cast would.
void make_weight_plain(EditableCheckpoint& checkpoint, const std::string& name);

inline formats::Json& quantization(EditableCheckpoint& checkpoint) {
  return checkpoint.config.at("quantization_config");
}

inline std::function<EditableCheckpoint()> spelled(std::string dialect, formats::SchemeId scheme,
                                                   formats::Activations activations) {
  return [=] { return make_spelled({dialect, scheme, activations}); };
}

}  // namespace ingot::testing
