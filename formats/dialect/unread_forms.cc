#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

struct Form {
  std::string_view method;  ///< quant_method
  std::string_view holds;   ///< the stored form
};

// As releases on the hub and the loaders of transformers, vLLM and SGLang name them.
constexpr std::array kForms = {
    Form{"aqlm", "AQLM's sums of codebook entries"},
    Form{"bitnet", "BitNet's ternary weights"},
    Form{"bitsandbytes", "bitsandbytes' NF4, FP4 or INT8 with statistics of its own"},
    Form{"eetq", "EETQ's INT8, laid out for its kernels"},
    Form{"exl2", "ExLlamaV2's groups of mixed bits"},
    Form{"exl3", "ExLlamaV3's trellis codes (EXL3)"},
    Form{"fbgemm_fp8", "FBGEMM's FP8 with a scale per row"},
    Form{"fouroversix", "Four Over Six's NVFP4"},
    Form{"fp_quant", "FP-Quant's rotated FP4"},
    Form{"gguf", "weights of llama.cpp"},
    Form{"higgs", "HIGGS' rotated grid codes"},
    Form{"hqq", "HQQ's codes and zero points"},
    Form{"mlx", "MLX's packed groups"},
    Form{"quanto", "Quanto's tensors"},
    Form{"quark", "AMD Quark's exports"},
    Form{"quip", "QuIP#'s lattice codes"},
    Form{"spqr", "SpQR's codes with separate outliers"},
    Form{"torchao", "TorchAO's tensors, each flattened into parts"},
    Form{"vptq", "VPTQ's codebook entries"},
};

Error unread(std::string_view named, std::string_view holds) {
  return Error(ErrorCode::kUnsupported,
               "{}{}{} cannot be read by this version (quant_method fp8, blockwise_int8, "
               "compressed-tensors, modelopt, mxfp4, awq, gptq and auto-round can; take the "
               "release that it was made from; --family generic copies this one)",
               named, holds.empty() ? "" : ": ", holds)
      .in_file("config.json");
}

}  // namespace

bool is_mlx_form(const ModelConfig& config) {
  // MLX writes its block twice, and a method in neither.
  if (config.quantization && !config.quantization->quant_method.empty()) return false;
  return std::ranges::any_of(
      std::array{"quantization", "quantization_config"}, [&](const char* key) {
        const Json& block = json_member(*config.raw, key);
        return block.is_object() && block.contains("bits") && block.contains("group_size");
      });
}

Error unread_form(const ModelConfig& config) {
  if (is_mlx_form(config))
    return unread("quantization with bits and group_size", "MLX's packed groups");
  const std::string method = config.quantization ? config.quantization->quant_method : "";
  const Json& packing = json_member(quantization_block(config), "packing_format");
  const auto* const form = std::ranges::find(kForms, method, &Form::method);
  return unread(fmt::format("quant_method '{}'{}", method,
                            packing.is_string()
                                ? fmt::format(" with packing_format {}", packing.get<std::string>())
                                : std::string()),
                form == kForms.end() ? "" : form->holds);
}

}  // namespace ingot::formats
