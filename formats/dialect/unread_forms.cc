#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <unordered_set>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/config/nested_config.h"
#include "formats/dialect/dialect_table.h"
#include "formats/dialect/dialect_words.h"
#include "formats/dialect/modelopt.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr std::string_view kOfBitsandbytes =
    "transformers dequantizes it: model.dequantize(), then save_pretrained";
constexpr std::string_view kOfMlx = "mlx_lm.convert --dequantize makes a plain copy on a Mac";

struct UnreadForm {
  std::string_view method;  ///< quant_method
  std::string_view holds;   ///< the stored form
  std::string_view help;    ///< tools that make a readable form of it; empty: fetch the release
};

// Methods as releases on the hub and the loaders of transformers, vLLM and SGLang name them.
constexpr std::array kUnreadForms = {
    UnreadForm{"aqlm", "AQLM's sums of codebook entries", ""},
    UnreadForm{"auto-round", "AutoRound's weights in a form of its own", ""},
    UnreadForm{"bitnet", "BitNet's ternary weights", ""},
    UnreadForm{"bitsandbytes", "bitsandbytes' NF4, FP4 or INT8 with statistics of its own",
               kOfBitsandbytes},
    UnreadForm{"eetq", "EETQ's INT8, laid out for its kernels", ""},
    UnreadForm{"exl2", "ExLlamaV2's groups of mixed bits", ""},
    UnreadForm{"exl3", "ExLlamaV3's trellis codes (EXL3)", "only ExLlamaV3 decodes them"},
    UnreadForm{"fouroversix", "Four Over Six's NVFP4", ""},
    UnreadForm{"fp_quant", "FP-Quant's rotated FP4", ""},
    UnreadForm{"gguf", "weights of llama.cpp", ""},
    UnreadForm{"higgs", "HIGGS' rotated grid codes", ""},
    UnreadForm{"hqq", "HQQ's codes and zero points", ""},
    UnreadForm{"mlx", "MLX's packed groups", kOfMlx},
    UnreadForm{"quanto", "Quanto's tensors", ""},
    UnreadForm{"quark", "AMD Quark's exports", ""},
    UnreadForm{"quip", "QuIP#'s lattice codes", ""},
    UnreadForm{"quip_sharp", "QuIP#'s lattice codes", ""},
    UnreadForm{"spqr", "SpQR's codes with separate outliers", ""},
    UnreadForm{"torchao", "TorchAO's tensors, each flattened into parts", ""},
    UnreadForm{"vptq", "VPTQ's codebook entries", ""},
    UnreadForm{"w4afp8", "SGLang's W4AFP8, experts of 4 bits for activations in FP8",
               "SGLang loads it as it is"},
};

/// A form whose parts tell it, whatever the config says: programs that save a model drop the
/// config's block, or keep the one of another.
struct UnreadParts {
  std::string_view part, with;  ///< endings of two tensors of one module
  std::string_view holds, help;
};
constexpr std::array kUnreadParts = {
    UnreadParts{".SCB", ".weight", "bitsandbytes' INT8 with the largest values of rows",
                kOfBitsandbytes},
    UnreadParts{".weight.absmax", ".weight", "bitsandbytes' NF4 or FP4 with statistics of its own",
                kOfBitsandbytes},
    UnreadParts{".row_offsets", ".bitmask",
                "compressed-tensors' sparse weights, those that are not zero and a bit for each",
                "llm-compressor decompresses it: save_pretrained with save_compressed=False"},
    UnreadParts{
        ".bitmask", ".compressed",
        "compressed-tensors' 2:4 sparse weights, those that are not zero and a bit for each",
        "llm-compressor decompresses it: save_pretrained with save_compressed=False"},
    UnreadParts{".meta", ".weight_packed",
                "compressed-tensors' 2:4 sparse codes, laid out for Marlin", ""},
    UnreadParts{".B_meta", ".B_24", "GPTQ's 2:4 sparse codes, laid out for Marlin", ""},
    UnreadParts{".codebooks", ".codes", "AQLM's sums of codebook entries", ""},
    UnreadParts{".q_invperm", ".q_weight", "ExLlamaV2's groups of mixed bits", ""},
    UnreadParts{".svh", ".trellis", "ExLlamaV3's trellis codes (EXL3)",
                "only ExLlamaV3 decodes them"},
    UnreadParts{".weight._scale", ".weight._data", "Quanto's tensors", ""},
    UnreadParts{".W_q", ".scale", "HQQ's codes and zero points", ""},
    UnreadParts{".weight_scales", ".weight", "EETQ's INT8, laid out for its kernels", ""},
    UnreadParts{".weight_scales", ".qweight", "EETQ's INT8, laid out for its kernels", ""},
    UnreadParts{".biases", ".scales", "MLX's packed groups", kOfMlx},
    UnreadParts{"._weight_qdata", "._weight_scale", "TorchAO's tensors, each flattened into parts",
                ""},
    UnreadParts{".centroids.weight", ".indices", "VPTQ's codebook entries", ""},
    UnreadParts{".dense_weights", ".row_offsets", "SpQR's codes with separate outliers", ""},
    UnreadParts{".forward_hadamard_matrix", ".qweight", "FP-Quant's rotated FP4", ""},
    UnreadParts{".Qidxs", ".SU", "QuIP#'s lattice codes", ""},
};

/// A quant_algo of ModelOpt whose tensors have the names of another quant_algo that is read.
struct UnreadAlgo {
  std::string_view algo, holds;
};
constexpr std::string_view kOfSvd =
    "ModelOpt's NVFP4 of what a product of two thin matrices leaves of each weight,";
constexpr std::array kUnreadAlgos = {
    UnreadAlgo{"W4A8_AWQ", "ModelOpt's AWQ of 4 bits with activations in FP8,"},
    UnreadAlgo{"W4A8_NVFP4_FP8", "ModelOpt's NVFP4 with activations in FP8,"},
    UnreadAlgo{"W4A8_MXFP4_FP8", "ModelOpt's MXFP4 with activations in FP8,"},
    UnreadAlgo{"NVFP4_SVD", kOfSvd},
    UnreadAlgo{"NVFP4_SVDQUANT", kOfSvd},
};

/// The modules that have both parts of a form, in stored order.
std::vector<std::string_view> modules_in(const UnreadParts& form,
                                         std::span<const StoredTensor> stored) {
  std::vector<std::string_view> modules;
  for (const StoredTensor& tensor : stored) {
    const std::string_view name = tensor.name;
    if (name.ends_with(form.part))
      modules.push_back(name.substr(0, name.size() - form.part.size()));
  }
  if (modules.empty()) return modules;
  std::unordered_set<std::string_view> with;
  for (const StoredTensor& tensor : stored) {
    const std::string_view name = tensor.name;
    if (name.ends_with(form.with)) with.insert(name.substr(0, name.size() - form.with.size()));
  }
  std::erase_if(modules, [&](std::string_view module) { return !with.contains(module); });
  return modules;
}

Error unread(std::string_view named, std::string_view holds, std::string_view help,
             std::string_view file = "config.json") {
  std::vector<std::string_view> methods = read_methods();
  const std::string_view last = methods.back();
  methods.pop_back();
  return Error(
             ErrorCode::kUnsupported,
             "{}{}{} cannot be read by this version (quant_method {} and {} can; take the release "
             "that it was made from{}{}; --family generic copies this one)",
             named, holds.empty() ? "" : ": ", holds, fmt::join(methods, ", "), last,
             help.empty() ? "" : "; ", help)
      .in_file(file);
}

}  // namespace

bool is_mlx_form(const ModelConfig& config) {
  // MLX writes its block twice, and a method in neither.
  if (!method_of(config).empty()) return false;
  return std::ranges::any_of(
      std::array{"quantization", "quantization_config"}, [&](const char* key) {
        const Json& block = json_member(*config.raw, key);
        return block.is_object() && block.contains("bits") && block.contains("group_size");
      });
}

std::optional<Error> unread_description(const Dialect& dialect, const Json& description) {
  if (dialect.unread_type.empty() || !description.is_object()) return std::nullopt;
  for (const auto& [tensor, type] : description.items()) {
    if (!type.is_string()) continue;
    const auto& name = type.get_ref<const std::string&>();
    if (name.find(dialect.unread_type) == std::string::npos) continue;
    return unread(fmt::format("type {} of '{}'", name, tensor), dialect.unread_holds, "",
                  dialect.description_file);
  }
  return std::nullopt;
}

std::optional<Error> unread_parts(std::span<const StoredTensor> stored) {
  for (const UnreadParts& form : kUnreadParts) {
    const std::vector<std::string_view> modules = modules_in(form, stored);
    if (modules.empty()) continue;
    const std::size_t n = modules.size();
    return unread(fmt::format("'{}{}'{}", modules.front(), form.part,
                              n == 1 ? "" : fmt::format(" and {} more", n - 1)),
                  form.holds, form.help, "");
  }
  return std::nullopt;
}

std::vector<bool> in_unread_forms(std::span<const StoredTensor> stored) {
  std::unordered_set<std::string_view> modules;
  for (const UnreadParts& form : kUnreadParts) {
    for (const std::string_view module : modules_in(form, stored)) modules.insert(module);
  }
  std::vector<bool> is_in(stored.size(), false);
  if (modules.empty()) return is_in;
  for (std::size_t i = 0; i < stored.size(); ++i) {
    const std::string_view name = stored[i].name;
    for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos && !is_in[i];
         dot = dot == 0 ? std::string_view::npos : name.rfind('.', dot - 1))
      is_in[i] = modules.contains(name.substr(0, dot));
  }
  return is_in;
}

std::optional<Error> unread_modelopt(const ModelConfig& config, const Json& description) {
  const Json& layers =
      json_member(modelopt_body(description.is_object() ? description : quantization_block(config)),
                  "quantized_layers");
  if (layers.is_object()) {
    std::size_t n = 0;
    std::set<std::string> algos;
    for (const auto& [module, layer] : layers.items()) {
      if (text_at(layer, "packing") != "ggml") continue;
      algos.insert(text_at(layer, "quant_algo"));
      ++n;
    }
    if (n > 0)
      return unread(fmt::format("packing ggml of {} module{}", n, n == 1 ? "" : "s"),
                    fmt::format("llama.cpp's blocks ({})", fmt::join(algos, ", ")),
                    "vLLM 0.33 loads them with its b12x kernels on a GPU of SM 12x");
  }
  const Json& block = description.is_object() ? description : quantization_block(config);
  const std::string algo = text_at(modelopt_body(block), "quant_algo");
  const auto* const form = std::ranges::find(kUnreadAlgos, algo, &UnreadAlgo::algo);
  if (form == kUnreadAlgos.end()) return std::nullopt;
  return unread(fmt::format("quant_method modelopt with quant_algo {}", algo), form->holds,
                "TensorRT-LLM loads it as it is");
}

Error unread_form(const ModelConfig& config) {
  if (is_mlx_form(config))
    return unread("quantization with bits and group_size", "MLX's packed groups", kOfMlx);
  const std::string method = method_of(config);
  const Json& packing = json_member(quantization_block(config), "packing_format");
  const auto* const form = std::ranges::find(kUnreadForms, method, &UnreadForm::method);
  const std::string part = unread_part(config);
  std::string named = fmt::format("quant_method '{}'", method);
  if (packing.is_string())
    named += fmt::format(" with packing_format {}", packing.get<std::string>());
  if (form == kUnreadForms.end()) return unread(named, "", "");
  return unread(named, fmt::format("{}{}{}", form->holds, part.empty() ? "" : ", ", part),
                form->help);
}

}  // namespace ingot::formats
