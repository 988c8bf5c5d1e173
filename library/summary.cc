#include "library/summary.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/family/cache_scales.h"
#include "formats/family/width.h"
#include "formats/records/slicing_record.h"
#include "report/rows.h"

namespace ingot::library {

using formats::Checkpoint;
using formats::Json;
using formats::json_list;
using formats::ModelConfig;
using formats::Role;
using formats::StoredTensor;

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

// Parameters of routed experts, by how many of these a token is sent to.
using RoutedParameters = std::map<std::uint64_t, std::uint64_t>;

// The share of the chosen ones, out of all. 128 bits: the product of two numbers of a file.
std::uint64_t active_share(std::uint64_t n_parameters, std::uint64_t chosen,
                           const ModelConfig& config) {
  chosen = std::min(chosen, config.n_routed_experts);
  __extension__ using Wide = unsigned __int128;
  return static_cast<std::uint64_t>(static_cast<Wide>(n_parameters) * chosen /
                                    config.n_routed_experts);
}

std::uint64_t& counted_in(Summary& summary, Role role, bool is_mtp) {
  if (role == Role::kLookupTable) return summary.table_parameters;
  if (role == Role::kOtherModality) return summary.modality_parameters;
  return is_mtp ? summary.mtp_parameters : summary.main_parameters;
}

Json tally_row(std::string_view name, const char* counted, const Tally& tally) {
  return {{"name", name},
          {"tensors", tally.n_tensors},
          {counted, tally.n_parameters},
          {"bytes", tally.n_bytes}};
}

}  // namespace

Summary summarize(const Checkpoint& source, const AsStored& as_stored) {
  const ModelConfig& config = source.config();
  Summary summary;
  std::map<std::uint32_t, LayerSummary> layers;
  const formats::Width chosen = formats::Width::parse("num_experts_per_tok");
  RoutedParameters routed;
  for (const StoredTensor& stored : as_stored.tensors()) {
    add(summary.by_dtype(stored.dtype, formats::dtype_name(stored.dtype)),
        formats::element_count(stored.shape).value_or(0), stored.n_bytes);
  }
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    const Role role = role_of(tensor);
    const formats::SchemeId scheme = tensor.encoding.scheme;
    const bool is_cache_scale = formats::is_cache_scale(tensor.rule);
    if (is_cache_scale) ++summary.n_cache_scales;
    // Rotary tables are buffers that old releases stored: computed, not learned.
    const std::uint64_t n_parameters = role == Role::kRotary || is_cache_scale
                                           ? 0
                                           : formats::element_count(tensor.shape).value_or(0);
    const std::uint64_t n_bytes = as_stored.n_bytes(tensor);
    add(summary.all, n_parameters, n_bytes);
    add(summary.by_scheme(scheme, formats::scheme_facts(scheme).name), n_parameters, n_bytes);
    add(summary.by_role(role, formats::role_name(role)), n_parameters, n_bytes);
    if (is_coded(scheme)) {
      const formats::StoredParts& parts = tensor.encoding.stored;
      const auto scale = parts[parts.has(formats::Part::kScale) ? formats::Part::kScale
                                                                : formats::Part::kDeqScale];
      const formats::SchemeFacts& facts = formats::scheme_facts(scheme);
      // Sides that follow from each tensor's own shape would make a row per shape.
      const auto [rows, cols] = std::pair(tensor.encoding.block_rows, tensor.encoding.block_cols);
      const bool has_all_cols = facts.is_read_only && cols >= tensor.shape.back();
      const bool is_one = has_all_cols && rows >= tensor.shape[tensor.shape.size() - 2];
      const bool is_row = has_all_cols && rows == 1;
      add(summary.quantization[{.scheme = scheme,
                                .block_rows = facts.group_rows == 0 || is_one ? 0 : rows,
                                .block_cols = facts.group_cols == 0 || is_one || is_row ? 0 : cols,
                                .scale_dtype = source.stored()[scale].dtype}],
          n_parameters, n_bytes);
    }
    const bool is_mtp = tensor.layer && *tensor.layer >= config.num_hidden_layers;
    counted_in(summary, role, is_mtp) += n_parameters;
    if (!is_mtp && is_routed_expert(role))
      routed[chosen.size(config, tensor.layer)] += n_parameters;
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
  if (!source.family().rules.empty() && (routed.empty() || knows_choice)) {
    std::uint64_t active = summary.main_parameters;
    for (const auto& [n_chosen, n_parameters] : routed)
      active -= n_parameters - active_share(n_parameters, n_chosen, config);
    summary.active_parameters = active;
  }
  return summary;
}

Json breakdown_rows(const Breakdown& breakdown) {
  return json_list(breakdown.rows, [&](const auto& row) {
    return tally_row(row.second.first, breakdown.counted, row.second.second);
  });
}

Json row_of(const LayerSummary& layer) {
  Json schemes = Json::object();
  for (const auto& [scheme, n] : layer.tensors_by_scheme)
    schemes[std::string(formats::scheme_facts(scheme).name)] = n;
  return {{"layer", layer.layer},
          {"kind", layer.kind},
          {"tensors", layer.tally.n_tensors},
          {"parameters", layer.tally.n_parameters},
          {"bytes", layer.tally.n_bytes},
          {"schemes", std::move(schemes)}};
}

Json file_rows(const Checkpoint& checkpoint, const AsStored& as_stored) {
  std::vector<std::uint64_t> n_tensors(checkpoint.files().size());
  for (const StoredTensor& stored : as_stored.tensors()) ++n_tensors[stored.file];
  Json rows = Json::array();
  for (const formats::SourceFile& file : checkpoint.files()) {
    rows.push_back(
        {{"name", file.name}, {"bytes", file.n_bytes}, {"tensors", n_tensors[rows.size()]}});
  }
  return rows;
}

Json side_file_rows(const Checkpoint& checkpoint) {
  return json_list(checkpoint.side_files(), [](const formats::SideFile& side) {
    return Json{{"name", side.path}, {"bytes", side.n_bytes}};
  });
}

Json summary_json(const Checkpoint& checkpoint) {
  const AsStored as_stored(checkpoint);
  const Summary summary = summarize(checkpoint, as_stored);
  Json json = {{"family", checkpoint.family().name},
               {"dialect", checkpoint.dialect().name},
               {"parameters", summary.main_parameters},
               {"active_parameters", or_null(summary.active_parameters)},
               {"mtp_parameters", summary.mtp_parameters},
               {"lookup_table_parameters", summary.table_parameters},
               {"other_modality_parameters", summary.modality_parameters},
               {"mtp_missing", checkpoint.lacks_promised_mtp()},
               {"tensors", summary.all.n_tensors},
               {"bytes", summary.all.n_bytes}};
  if (!checkpoint.is_whole()) json["joined_files"] = checkpoint.files().size();
  if (checkpoint.slicing() != nullptr)
    json["slicing"] = formats::slicing_record_json(*checkpoint.slicing());
  json["quantization"] = Json::array();
  for (const auto& [found, tally] : summary.quantization) {
    Json row = tally_row(formats::scheme_facts(found.scheme).name, "parameters", tally);
    row["block"] = {found.block_rows, found.block_cols};
    row["scale_dtype"] = formats::dtype_name(found.scale_dtype);
    json["quantization"].push_back(std::move(row));
  }
  for (const Breakdown* breakdown : {&summary.by_dtype, &summary.by_scheme, &summary.by_role}) {
    json[fmt::format("by_{}", breakdown->property)] = breakdown_rows(*breakdown);
  }
  json["layers"] = json_rows(summary.layers);
  json["files"] = file_rows(checkpoint, as_stored);
  json["index"] = checkpoint.has_index();
  json["side_files"] = side_file_rows(checkpoint);
  return json;
}

}  // namespace ingot::library
