#include "cli/inspect_summary.h"

#include <algorithm>

namespace ingot::cli {

using formats::LogicalTensor;
using formats::ModelConfig;
using formats::Role;
using formats::StoredTensor;
using formats::TensorSource;

namespace {

void add(Tally& tally, std::uint64_t n_parameters, std::uint64_t n_bytes) {
  ++tally.n_tensors;
  tally.n_parameters += n_parameters;
  tally.n_bytes += n_bytes;
}

std::string_view layer_kind(const ModelConfig& config, std::uint32_t layer) {
  if (layer >= config.num_hidden_layers) return "mtp";
  return layer < config.layer_is_moe.size() && config.layer_is_moe[layer] ? "moe" : "dense";
}

// The routed experts that a token is sent to, out of all. 128 bits: the product of two numbers of a
// file.
std::uint64_t active_share(std::uint64_t n_parameters, const ModelConfig& config) {
  const std::uint64_t chosen = std::min(config.num_experts_per_tok, config.n_routed_experts);
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(n_parameters) * chosen /
                                    config.n_routed_experts);
}

}  // namespace

Role role_of(const LogicalTensor& tensor) {
  return tensor.rule != nullptr ? tensor.rule->role : Role::kOther;
}

std::uint64_t stored_bytes(const TensorSource& source, const LogicalTensor& tensor) {
  std::uint64_t n_bytes = 0;
  tensor.encoding.stored.for_each(
      [&](formats::Part, std::uint32_t stored) { n_bytes += source.stored()[stored].n_bytes; });
  return n_bytes;
}

Summary summarize(const TensorSource& source) {
  const ModelConfig& config = source.config();
  Summary summary;
  std::map<std::uint32_t, LayerSummary> layers;
  std::uint64_t routed = 0;
  for (const StoredTensor& stored : source.stored()) {
    add(summary.by_dtype[stored.dtype], formats::element_count(stored.shape).value_or(0),
        stored.n_bytes);
  }
  for (const LogicalTensor& tensor : source.tensors()) {
    const Role role = role_of(tensor);
    const formats::SchemeId scheme = tensor.encoding.scheme;
    // Rotary tables are buffers that old releases stored: computed, not learned.
    const std::uint64_t n_parameters =
        role == Role::kRotary ? 0 : formats::element_count(tensor.shape).value_or(0);
    const std::uint64_t n_bytes = stored_bytes(source, tensor);
    add(summary.all, n_parameters, n_bytes);
    add(summary.by_scheme[scheme], n_parameters, n_bytes);
    add(summary.by_role[role], n_parameters, n_bytes);
    if (formats::scheme_facts(scheme).quantized) {
      const formats::StoredParts& parts = tensor.encoding.stored;
      const auto scale = parts[parts.has(formats::Part::kScale) ? formats::Part::kScale
                                                                : formats::Part::kDeqScale];
      const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
      // Sides that follow from each tensor's own shape would make a row per shape.
      add(summary
              .quantization[{.scheme = scheme,
                             .block_rows = facts.group_rows == 0 ? 0 : tensor.encoding.block_rows,
                             .block_cols = facts.group_cols == 0 ? 0 : tensor.encoding.block_cols,
                             .scale_dtype = source.stored()[scale].dtype}],
          n_parameters, n_bytes);
    }
    const bool is_mtp = tensor.layer && *tensor.layer >= config.num_hidden_layers;
    (is_mtp ? summary.mtp_parameters : summary.main_parameters) += n_parameters;
    if (!is_mtp && is_routed_expert(role)) routed += n_parameters;
    if (tensor.layer) {
      LayerSummary& layer = layers[*tensor.layer];
      layer.layer = *tensor.layer;
      layer.kind = layer_kind(config, *tensor.layer);
      add(layer.tally, n_parameters, n_bytes);
      ++layer.tensors_by_scheme[scheme];
    }
  }
  for (auto& [number, layer] : layers) summary.layers.push_back(std::move(layer));
  const bool knows_choice = config.num_experts_per_tok > 0 && config.n_routed_experts > 0;
  if (!source.family().rules.empty() && (routed == 0 || knows_choice)) {
    summary.active_parameters =
        summary.main_parameters - routed + (routed == 0 ? 0 : active_share(routed, config));
  }
  return summary;
}

}  // namespace ingot::cli
