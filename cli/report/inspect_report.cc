#include "cli/report/inspect_report.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/terminal/terminal.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/storage/encoding.h"
#include "formats/storage/tensor_source.h"
#include "library/as_stored.h"
#include "library/summary.h"
#include "report/figures.h"
#include "report/rows.h"
#include "report/table_text.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using library::AsStored;
using library::Breakdown;
using library::Summary;

namespace {

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

std::string breakdown_text(const Breakdown& breakdown) {
  return bold_table(table_of(breakdown_rows(breakdown),
                             {{breakdown.property, "name"},
                              {"tensors"},
                              {fmt::format("{:>10}", breakdown.counted), breakdown.counted},
                              {"bytes"}}));
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
    const library::LayerSummary& first = summary.layers[begin];
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
  for (Json& side : library::side_file_rows(checkpoint)) rows.push_back(std::move(side));
  const auto tensors = [](const Json& n) { return n.is_null() ? "" : count_text(n) + " tensors"; };
  const auto bytes = [](const Json& n) { return n.is_null() ? "" : count_text(n) + " bytes"; };
  return text + table_text(table_of(rows, {{"", "name"},
                                           {number(""), "tensors", tensors},
                                           {number(""), "bytes", bytes}}),
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

// Says if this is a part of a model, or put together from parts.
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
  std::set<std::string_view> origins;
  for (const auto& [module, scales] : formats::stored_caches(checkpoint)) {
    for (const formats::StoredCacheScale& scale : scales) origins.insert(scale.name.origin);
  }
  return fmt::format("KV cache      {}; {}\n", words.empty() ? "the config says nothing" : words,
                     n_scales == 0 ? "no scales are stored: 1.0"
                                   : fmt::format("{} scales are stored, in names of {}", n_scales,
                                                 fmt::join(origins, ", ")));
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

}  // namespace ingot::cli
