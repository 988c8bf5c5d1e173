#include <array>

#include "formats/json.h"
#include "tests/verify/mutations/edited_weights.h"
#include "tests/verify/mutations/fault.h"

namespace ingot::testing {

using formats::Json;

namespace {

template <typename Change>
void edit_config(const Pair& pair, const Change& change) {
  edit_json(pair.output / "config.json", change);
}

void drop_mtp(const Pair& pair) {
  drop_tensors(pair.output, EditedWeights(pair.output).names("model.layers.5."));
}

void claim_quantization(const Pair& pair) {
  const Json source = formats::read_json_file(pair.source / "config.json", 1 << 20);
  edit_config(pair, [&](Json& config) {
    config["quantization_config"] = source.at("quantization_config");
  });
}

Json& ignored_modules(Json& config) {
  return config.at("quantization_config").at("ignore");
}

constexpr std::string_view kO = "model.layers.3.self_attn.o_proj";

constexpr std::array kFaults{
    Fault{"mtp_missing_while_promised", Good::kInt8, drop_mtp, "num_nextn_predict_layers"},
    Fault{"mtp_missing_while_promised_in_nvfp4", Good::kNvfp4Modelopt, drop_mtp,
          "num_nextn_predict_layers"},
    Fault{"quantization_config_over_bf16_weights", Good::kBf16, claim_quantization, "config.json"},
    Fault{"no_quantization_config_over_fp8_weights", Good::kFp8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("quantization_config"); });
          },
          "config"},
    Fault{"no_quantization_config_over_int8_weights", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("quantization_config"); });
          },
          "config"},
    Fault{"ignore_list_names_a_quantized_module", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { ignored_modules(config).push_back(kO); });
          },
          kO},
    Fault{"ignore_list_lacks_a_plain_module", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) {
              for (Json& entry : ignored_modules(config)) {
                if (entry == "re:.*\\.self_attn\\.indexer\\.wk$") entry = "re:.*\\.indexer\\.vk$";
              }
            });
          },
          "indexer.wk"},
    Fault{"exclude_list_names_a_quantized_module", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            static constexpr const char* kUp = "model.layers.2.mlp.experts.3.up_proj";
            edit_config(pair, [](Json& config) { ignored_modules(config).push_back(kUp); });
            edit_json(pair.output / "hf_quant_config.json", [](Json& description) {
              description.at("quantization").at("exclude_modules").push_back(kUp);
            });
          },
          "model.layers.2.mlp.experts.3.up_proj"},
    Fault{"description_calls_a_quantized_module_plain", Good::kInt8Modelslim,
          [](const Pair& pair) {
            edit_json(pair.output / "quant_model_description.json", [](Json& description) {
              description[std::string(kO) + ".weight"] = "FLOAT";
            });
          },
          kO},
    Fault{"description_missing", Good::kInt8Modelslim,
          [](const Pair& pair) {
            std::filesystem::remove(pair.output / "quant_model_description.json");
          },
          "quant_model_description.json"},
    Fault{"rope_factor_changed", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.at("rope_scaling")["factor"] = 40; });
          },
          "rope_scaling.factor"},
    Fault{"rope_theta_changed", Good::kNvfp4Modelopt,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["rope_theta"] = 50000; });
          },
          "rope_theta"},
    Fault{"rope_scaling_lost", Good::kBf16,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config.erase("rope_scaling"); });
          },
          "rope_scaling"},
    Fault{"eps_changed", Good::kInt8,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["rms_norm_eps"] = 1e-5; });
          },
          "rms_norm_eps"},
    Fault{"experts_per_token_changed", Good::kNvfp4Ct,
          [](const Pair& pair) {
            edit_config(pair, [](Json& config) { config["num_experts_per_tok"] = 2; });
          },
          "num_experts_per_tok"},
};

}  // namespace

std::span<const Fault> config_faults() {
  return kFaults;
}

}  // namespace ingot::testing
