#include "cli/report/inspect_report.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "cli/report/as_stored.h"
#include "cli/terminal/terminal.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/cache_words.h"
#include "formats/family/cache_scales.h"
#include "formats/storage/tensor_source.h"
#include "report/figures.h"
#include "report/rows.h"
#include "report/table_text.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using formats::json_list;
using formats::LogicalTensor;
using formats::ModelConfig;
using formats::Role;
using formats::StoredTensor;

namespace {

/// Tensors, the parameters that they hold, and their stored bytes (of a quantized weight, scales
/// included).
struct Tally {
  std::uint64_t n_tensors = 0, n_parameters = 0, n_bytes = 0;
  friend bool operator==(const Tally&, const Tally&) = default;
};

/// The contents of one layer.
struct LayerSummary {
  std::uint32_t layer = 0;
  std::string_view kind;  ///< "dense", "moe" or "mtp"
  Tally tally;
  std::map<formats::SchemeId, std::uint64_t> tensors_by_scheme;
};

/// One way in which weights are quantized.
struct QuantizationFound {
  formats::SchemeId scheme{};
  std::uint64_t block_rows = 0, block_cols = 0;
  formats::DType scale_dtype{};
  auto operator<=>(const QuantizationFound&) const = default;
};

/// Sums of stored tensors or weights by one of their properties, in the order of its values.
struct Breakdown {
  const char* property;
  const char* counted;  ///< the unit of n_parameters
  std::map<int, std::pair<std::string_view, Tally>> rows;

  template <typename Value>
  Tally& operator()(Value value, std::string_view name) {
    auto& [row_name, tally] = rows[static_cast<int>(value)];
    row_name = name;
    return tally;
  }
};

/// The contents of a checkpoint, only from headers and config.
struct Summary {
  Tally all;
  /// Without MTP layers, tables of n-grams and other modalities, which are counted apart.
  std::uint64_t main_parameters = 0;
  std::uint64_t mtp_parameters = 0, table_parameters = 0, modality_parameters = 0;
  std::uint64_t n_cache_scales = 0;  ///< tensors, no parameters either
  /// The part of main_parameters that one token meets: everything but the routed experts, of which
  /// num_experts_per_tok count. Nullopt when the family's roles are unknown.
  std::optional<std::uint64_t> active_parameters;
  Breakdown by_dtype = {"dtype", "elements", {}};  ///< stored tensors: scales are no parameters
  Breakdown by_scheme = {"scheme", "parameters", {}}, by_role = {"role", "parameters", {}};
  std::vector<LayerSummary> layers;
  std::map<QuantizationFound, Tally> quantization;
};

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
  for (const LogicalTensor& tensor : source.tensors()) {
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

// More files than this are summed up in the text; --json has them all.
constexpr std::size_t kFilesShown = 20;

std::string parameters_text(std::uint64_t n_parameters) {
  const auto n = static_cast<double>(n_parameters);
  const std::string exact = count_text(n_parameters);
  return n < 1e9 ? fmt::format("{} ({:.2f} M)", exact, n * 1e-6)
                 : fmt::format("{} ({:.2f} B)", exact, n * 1e-9);
}

// With its titles in bold.
std::string bold_table(const Table& table) {
  const Emphasis bold = emphasis(1);
  const std::string text = table_text(table, report_width());
  const std::size_t end = text.find('\n');
  return fmt::format("{}{}{}{}\n", bold.on, text.substr(0, end), bold.off, text.substr(end));
}

Json tally_row(std::string_view name, const char* counted, const Tally& tally) {
  return {{"name", name},
          {"tensors", tally.n_tensors},
          {counted, tally.n_parameters},
          {"bytes", tally.n_bytes}};
}

Json breakdown_rows(const Breakdown& breakdown) {
  return json_list(breakdown.rows, [&](const auto& row) {
    return tally_row(row.second.first, breakdown.counted, row.second.second);
  });
}

std::string breakdown_text(const Breakdown& breakdown) {
  return bold_table(table_of(breakdown_rows(breakdown),
                             {{breakdown.property, "name"},
                              {"tensors"},
                              {fmt::format("{:>10}", breakdown.counted), breakdown.counted},
                              {"bytes"}}));
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

std::string scheme_mix(const Json& schemes) {
  std::string text;
  for (const auto& [scheme, n] : schemes.items())
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n.get<std::uint64_t>(), scheme);
  return text;
}

// Layers that are alike share a row.
std::string layer_table(const Summary& summary) {
  Json rows = Json::array();
  for (std::size_t begin = 0; begin < summary.layers.size();) {
    const LayerSummary& first = summary.layers[begin];
    std::size_t end = begin + 1;
    while (end < summary.layers.size() &&
           summary.layers[end].layer == summary.layers[end - 1].layer + 1 &&
           summary.layers[end].kind == first.kind && summary.layers[end].tally == first.tally &&
           summary.layers[end].tensors_by_scheme == first.tensors_by_scheme) {
      ++end;
    }
    const std::uint32_t last = summary.layers[end - 1].layer;
    rows.push_back(row_of(first));
    rows.back()["layer"] =
        first.layer == last ? std::to_string(last) : fmt::format("{}-{}", first.layer, last);
    begin = end;
  }
  return bold_table(table_of(rows, {{"layers", "layer"},
                                    {"kind"},
                                    {"tensors"},
                                    {"parameters"},
                                    {"bytes"},
                                    {"schemes (each layer)", "schemes", scheme_mix}}));
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

std::string files_text(const Checkpoint& checkpoint, const AsStored& as_stored) {
  Json rows = file_rows(checkpoint, as_stored);
  std::uint64_t total = 0;
  for (const Json& file : rows) total += file["bytes"].get<std::uint64_t>();
  std::string text = fmt::format("{} weights file(s), {} bytes ({}){}, {} side file(s)\n",
                                 rows.size(), count_text(total), bytes_text(total),
                                 checkpoint.has_index() ? ", with index" : ", without index",
                                 checkpoint.side_files().size());
  if (rows.size() > kFilesShown) {
    rows[3] = {{"name", fmt::format("... {} more", rows.size() - 4)}};
    rows.erase(rows.begin() + 4, rows.end() - 1);
  }
  for (Json& side : side_file_rows(checkpoint)) rows.push_back(std::move(side));
  const auto tensors = [](const Json& n) { return n.is_null() ? "" : count_text(n) + " tensors"; };
  return text +
         table_text(table_of(rows, {{"", "name"}, {number(""), "tensors", tensors}, {"", "bytes"}}),
                    report_width());
}

std::string quantization_text(const Checkpoint& checkpoint, const Summary& summary) {
  std::string text;
  for (const auto& [found, tally] : summary.quantization) {
    const auto side = [](std::uint64_t n) { return n == 0 ? "all" : std::to_string(n); };
    text += fmt::format("quantization  {} of {}x{}, scales {}: {} weights, {} parameters\n",
                        formats::scheme_facts(found.scheme).name, side(found.block_rows),
                        side(found.block_cols), formats::dtype_name(found.scale_dtype),
                        count_text(tally.n_tensors), count_text(tally.n_parameters));
  }
  if (text.empty()) text = "quantization  none\n";
  if (const auto& config = checkpoint.config().quantization) {
    std::string said = fmt::format("quant_method {}", config->quant_method);
    if (!config->fmt.empty()) said += ", fmt " + config->fmt;
    if (!config->scale_fmt.empty()) said += ", scale_fmt " + config->scale_fmt;
    if (!config->activation_scheme.empty())
      said += ", activation_scheme " + config->activation_scheme;
    text += fmt::format("config says   {}\n", printable(said));
  }
  return text;
}

// Whether this is a part of a model, or put together from parts.
std::string slices_text(const Checkpoint& checkpoint) {
  if (!checkpoint.is_whole())
    return fmt::format("slices        joined from {} files\n", checkpoint.files().size());
  const formats::SlicingRecord* slicing = checkpoint.slicing();
  if (slicing == nullptr) return {};
  const formats::RankRecord& rank = *slicing->rank;
  return fmt::format(
      "slices        of rank {} of {} (stage {}, tp_rank {} of {}, ep_rank {} of {}, etp_rank {} "
      "of "
      "{}); shapes and counts are the rank's\n",
      rank.rank, slicing->n_ranks, rank.stage, rank.tp_rank, slicing->tp, rank.ep_rank, slicing->ep,
      rank.etp_rank, slicing->etp);
}

// The config's words for a quantized cache of keys and values, and the number of stored scales.
std::string cache_text(const Checkpoint& checkpoint, std::uint64_t n_scales) {
  const std::string words = formats::cache_words(checkpoint);
  if (words.empty() && n_scales == 0) return {};
  return fmt::format(
      "KV cache      {}; {}\n", words.empty() ? "the config says nothing" : words,
      n_scales == 0 ? "no scales are stored: 1.0" : fmt::format("{} scales are stored", n_scales));
}

}  // namespace

std::string summary_text(std::string_view directory, const Checkpoint& checkpoint) {
  const AsStored as_stored(checkpoint);
  const Summary summary = summarize(checkpoint, as_stored);
  const Emphasis bold = emphasis(1);
  std::string text = fmt::format("{}{}{}\n", bold.on, printable(directory), bold.off);
  text += slices_text(checkpoint);
  text +=
      fmt::format("family        {} ({})\n", checkpoint.family().name, checkpoint.family().summary);
  text += fmt::format("dialect       {}\n", checkpoint.dialect().name);
  text += fmt::format("parameters    {}\n", parameters_text(summary.main_parameters));
  text += fmt::format("active        {}\n",
                      summary.active_parameters
                          ? parameters_text(*summary.active_parameters) + " per token"
                          : std::string("unknown"));
  if (summary.mtp_parameters > 0) {
    text += fmt::format("MTP           {} in addition\n", parameters_text(summary.mtp_parameters));
  } else if (checkpoint.lacks_promised_mtp()) {
    text += fmt::format("MTP           {} layer(s) promised by config.json, none here\n",
                        checkpoint.config().num_nextn_predict_layers);
  }
  const auto tell_apart = [&](std::string_view label, std::uint64_t n_parameters) {
    if (n_parameters > 0)
      text += fmt::format("{:14}{} in addition\n", label, parameters_text(n_parameters));
  };
  tell_apart("tables", summary.table_parameters);
  tell_apart("other media", summary.modality_parameters);
  text += cache_text(checkpoint, summary.n_cache_scales);
  text += quantization_text(checkpoint, summary) + "\n";

  for (const Breakdown* breakdown : {&summary.by_dtype, &summary.by_scheme, &summary.by_role})
    text += breakdown_text(*breakdown);
  if (!summary.layers.empty()) text += layer_table(summary);
  return text + files_text(checkpoint, as_stored);
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

}  // namespace ingot::cli
