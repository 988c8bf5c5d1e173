#include <cstdint>

#include "formats/container/bfloat16.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {
namespace {

// Every BF16 number of the model.
template <int Percent>
void multiply_bf16(const Pair& pair) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names()) {
    if (weights.read(name).dtype != formats::DType::kBf16) continue;
    weights.at(name).map<std::uint16_t>([](std::uint16_t value) {
      return formats::bf16_from_float(formats::float_from_bf16(value) * kFactor);
    });
  }
  weights.save();
}

// Every F32 scale that multiplies.
template <int Percent>
void multiply_scales(const Pair& pair, const char* suffix) {
  constexpr float kFactor = static_cast<float>(Percent) / 100;
  EditedWeights weights(pair.output);
  for (const std::string& name : weights.names("", suffix)) {
    if (weights.read(name).dtype != formats::DType::kF32) continue;
    weights.at(name).map<float>([](float scale) { return scale * kFactor; });
  }
  weights.save();
}

// Which of them stand among the worst is left open.
constexpr std::string_view kAny = "model.layers.";

}  // namespace

std::vector<Fault> model_faults() {
  return {{"every_weight_times_1_01", Good::kBf16, multiply_bf16<101>, kAny},
          {"every_weight_times_2", Good::kBf16, multiply_bf16<200>, kAny},
          {"every_int8_weight_times_1_01", Good::kInt8,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale"); }, kAny},
          {"every_int8_weight_times_2", Good::kInt8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale"); }, kAny},
          {"every_nvfp4_weight_times_1_01", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<101>(pair, ".weight_scale_2"); }, kAny},
          {"every_nvfp4_weight_times_2", Good::kNvfp4Modelopt,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_2"); }, kAny},
          {"every_fp8_weight_times_2", Good::kFp8,
           [](const Pair& pair) { multiply_scales<200>(pair, ".weight_scale_inv"); }, kAny}};
}

}  // namespace ingot::testing
