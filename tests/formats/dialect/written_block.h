#pragma once

#include "formats/dialect/dialect.h"
#include "formats/family/families.h"
#include "formats/json/json.h"
#include "tests/support/test.h"

// Tensors of an output, and the block that a dialect derives from them.

namespace ingot::formats {

inline ModelConfig config_with(const std::string& quantization) {
  const std::string member =
      quantization.empty() ? "" : ", \"quantization_config\": " + quantization;
  return parse_model_config("{\"model_type\": \"deepseek_v3\"" + member + "}", "config.json");
}

inline const Dialect& dialect_named(std::string_view name) {
  const Dialect* dialect = find_dialect(name);
  EXPECT_NE(dialect, nullptr) << name;
  return *dialect;
}

inline constexpr const char* kReleased =
    R"({"quant_method":"fp8","activation_scheme":"dynamic","scale_fmt":"ue8m0","fmt":"e4m3","weight_block_size":[128,128]})";

inline constexpr TensorRule kQuantizedRule = {.fp8_by_default = true};

inline WrittenTensor tensor(std::string_view name, SchemeId scheme, const TensorRule* rule,
                            Activations activations = Activations::kDynamic) {
  WrittenTensor written;
  written.name = name;
  written.scheme = scheme;
  written.activations = activations;
  written.rule = rule;
  return written;
}

inline constexpr const char* kUpName = "model.layers.0.mlp.up_proj.weight";
inline constexpr const char* kDownName = "model.layers.0.mlp.down_proj.weight";
inline const WrittenTensor kUp = tensor(kUpName, SchemeId::kFp8Block, &kQuantizedRule);
inline const WrittenTensor kPlainUp = tensor(kUpName, SchemeId::kBf16, &kQuantizedRule);
inline const WrittenTensor kDown = tensor(kDownName, SchemeId::kFp8Block, &kQuantizedRule);
inline const WrittenTensor kPlainDown = tensor(kDownName, SchemeId::kBf16, &kQuantizedRule);
inline const WrittenTensor kNorm = tensor("model.norm.weight", SchemeId::kF32, nullptr);
inline const WrittenTensor kHead = tensor("lm_head.weight", SchemeId::kBf16, nullptr);

/// The block for the written tensors; the scales of `kReleased` are powers of two.
inline Json derived(std::string_view dialect, const ModelConfig& source,
                    const std::vector<WrittenTensor>& written, bool power_of_two_scales = false) {
  return dialect_named(dialect).quantization_config(
      {.source = source, .tensors = written, .power_of_two_scales = power_of_two_scales});
}

inline constexpr TensorRule kExpertRule = {.role = Role::kExpertUp, .fp8_by_default = true};
inline constexpr const char* kExpertName = "model.layers.1.mlp.experts.0.up_proj.weight";

}  // namespace ingot::formats
