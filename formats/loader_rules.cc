#include "formats/loader_rules.h"

#include <array>

#include <fmt/format.h>

#include "formats/loader_rule_bodies.h"

namespace ingot::formats {
namespace {

namespace bodies = rule_bodies;
using enum Severity;

constexpr std::array kRules = {
    LoaderRule{"container.metadata-format", "transformers 4", kWarning,
               "__metadata__.format of every file is pt, tf, flax or mlx", bodies::metadata_format},
    LoaderRule{"container.entry-point", "all", kError,
               "there is an index, or one file named model.safetensors", bodies::entry_point},
    LoaderRule{"fp8.config-present", "all", kError,
               "a checkpoint with FP8 weights has a quantization_config", bodies::config_present},
    LoaderRule{"fp8.config-without-weights", "all", kError,
               "a quantization_config of method fp8 stands over FP8 weights",
               bodies::config_without_weights},
    LoaderRule{"fp8.activation-scheme", "vLLM", kWarning,
               "activation_scheme is there, and dynamic beside weight_block_size",
               bodies::activation_scheme},
    LoaderRule{"fp8.block-size", "all", kError,
               "weight_block_size has two positive entries: rows and columns of a block",
               bodies::block_size},
    LoaderRule{"fp8.weight-quantized", "all", kError,
               "a weight that the FP8 release quantizes is FP8, or its module is listed as ignored",
               bodies::weight_quantized},
    LoaderRule{"fp8.plain-module", "all", kError,
               "embedding, head, router, norms, eh_proj and weights_proj are not FP8",
               bodies::plain_module},
    LoaderRule{"fp8.weight-dtype", "all", kError, "FP8 weights are F8_E4M3", bodies::weight_dtype},
    LoaderRule{"fp8.scale-present", "all", kError, "every FP8 weight has its scale",
               bodies::scale_present},
    LoaderRule{"fp8.scale-dtype", "all", kError, "block scales are F32, BF16 or F8_E8M0",
               bodies::scale_dtype},
    LoaderRule{"fp8.scale-shape", "all", kError,
               "the scale of an [N, K] weight is [ceil(N/rows), ceil(K/columns)]",
               bodies::scale_shape},
    LoaderRule{"fp8.scale-values", "all", kError, "every scale is finite and positive",
               bodies::scale_values},
    LoaderRule{"fp8.ue8m0-claim", "vLLM, SGLang (DeepGEMM)", kWarning,
               "under scale_fmt ue8m0 every scale is a power of two", bodies::ue8m0_claim},
    LoaderRule{"fp8.nan-code", "all", kError, "no FP8 weight holds a NaN code (with --deep)",
               bodies::nan_code},
    LoaderRule{"fp8.merged-partition", "vLLM", kWarning,
               "all but the last weight of a merged FP8 module end at a block's edge",
               bodies::merged_partition},
    LoaderRule{"fused.scheme", "all", kError, "weights that a loader fuses have one scheme",
               bodies::fused_scheme},
    LoaderRule{"moe.expert-ids", "all", kError,
               "every mixture layer has the experts 0 to E-1, whole, and no others",
               bodies::expert_ids},
    LoaderRule{"moe.stacked-shape", "all", kError, "stacked experts are [E, 2I, H] and [E, H, I]",
               bodies::stacked_shape},
    LoaderRule{"router.correction-bias", "all", kError,
               "with topk_method noaux_tc every router has its e_score_correction_bias",
               bodies::correction_bias},
    LoaderRule{"router.correction-bias-dtype", "vLLM, SGLang", kWarning,
               "e_score_correction_bias is F32 where the release has it so",
               bodies::correction_bias_dtype},
    LoaderRule{"indexer.complete", "all", kError,
               "every layer of a sparse-attention model has its indexer", bodies::indexer_complete},
    LoaderRule{"mtp.present", "vLLM, SGLang with speculative decoding", kWarning,
               "the layers that num_nextn_predict_layers promises are there", bodies::mtp_present},
    LoaderRule{"mtp.complete", "vLLM, SGLang with speculative decoding", kError,
               "a multi-token prediction layer that is there is whole", bodies::mtp_complete},
    LoaderRule{"model.complete", "all", kError, "every tensor that the config promises is there",
               bodies::model_complete},
    LoaderRule{"model.shape", "all", kError, "every tensor has the shape that the config promises",
               bodies::model_shape},
};

}  // namespace

Finding finding_of(const Error& error) {
  Finding finding;
  finding.code = error.code();
  finding.file = error.file();
  finding.tensor = error.tensor();
  finding.message = error.message();
  return finding;
}

std::span<const LoaderRule> loader_rules() {
  return kRules;
}

std::vector<Finding> run_loader_rules(const Checkpoint& checkpoint, const RuleOptions& options) {
  std::vector<Finding> findings;
  for (const LoaderRule& row : kRules) {
    row.test(checkpoint, options, [&](Finding finding) {
      finding.severity = row.severity;
      finding.rule = row.name;
      findings.push_back(std::move(finding));
    });
  }
  return findings;
}

void rule_bodies::FindingsByKind::add(const TensorRule* kind, Finding finding) {
  const auto [entry, is_new] = index_.try_emplace(kind, found_.size());
  if (is_new) found_.emplace_back(std::move(finding), 0);
  ++found_[entry->second].second;
}

void rule_bodies::FindingsByKind::report(const Report& report) {
  for (auto& [finding, count] : found_) {
    if (count > 1) finding.message += fmt::format(" (so do {} more of this kind)", count - 1);
    report(std::move(finding));
  }
}

}  // namespace ingot::formats
