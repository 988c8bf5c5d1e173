#include "cli/inspect_report.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/terminal.h"
#include "formats/base/figures.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::StoredTensor;

namespace {

using Rows = std::vector<std::vector<std::string>>;

// More files than this are summed up in the text; --json has them all.
constexpr std::size_t kFilesShown = 20;

std::string parameters_text(std::uint64_t n_parameters) {
  const auto n = static_cast<double>(n_parameters);
  const std::string exact = count_text(n_parameters);
  return n < 1e9 ? fmt::format("{} ({:.2f} M)", exact, n * 1e-6)
                 : fmt::format("{} ({:.2f} B)", exact, n * 1e-9);
}

std::vector<std::string> tally_row(std::string name, const Tally& tally) {
  return {std::move(name), count_text(tally.n_tensors), count_text(tally.n_parameters),
          count_text(tally.n_bytes)};
}

std::string section(std::string_view first_column, const Rows& body) {
  Rows rows = {{std::string(first_column), "tensors", "parameters", "bytes"}};
  rows.insert(rows.end(), body.begin(), body.end());
  const Emphasis bold = emphasis(1);
  std::string table = text_table(rows, {false, true, true, true});
  const std::size_t end = table.find('\n');
  return fmt::format("{}{}{}{}\n", bold.on, table.substr(0, end), bold.off, table.substr(end));
}

std::string scheme_mix(const LayerSummary& layer) {
  std::string text;
  for (const auto& [scheme, n] : layer.tensors_by_scheme) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", n, formats::scheme_facts(scheme).name);
  }
  return text;
}

// Layers that are alike stand in one row.
std::string layer_table(const Summary& summary) {
  Rows rows = {{"layers", "kind", "tensors", "parameters", "bytes", "schemes (each layer)"}};
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
    rows.push_back(
        {first.layer == last ? std::to_string(last) : fmt::format("{}-{}", first.layer, last),
         std::string(first.kind), count_text(first.tally.n_tensors),
         count_text(first.tally.n_parameters), count_text(first.tally.n_bytes), scheme_mix(first)});
    begin = end;
  }
  const Emphasis bold = emphasis(1);
  const std::string table = text_table(rows, {false, false, true, true, true, false});
  const std::size_t end = table.find('\n');
  return fmt::format("{}{}{}{}\n", bold.on, table.substr(0, end), bold.off, table.substr(end));
}

std::vector<std::uint64_t> tensors_by_file(const Checkpoint& checkpoint) {
  std::vector<std::uint64_t> counts(checkpoint.files().size());
  for (const StoredTensor& stored : checkpoint.stored()) ++counts[stored.file];
  return counts;
}

std::string files_text(const Checkpoint& checkpoint) {
  const auto files = checkpoint.files();
  const std::vector<std::uint64_t> counts = tensors_by_file(checkpoint);
  std::uint64_t total = 0;
  for (const formats::SourceFile& file : files) total += file.n_bytes;
  std::string text = fmt::format("{} weights file(s), {} bytes ({}){}, {} side file(s)\n",
                                 files.size(), count_text(total), bytes_text(total),
                                 checkpoint.has_index() ? ", with index" : ", without index",
                                 checkpoint.side_files().size());
  Rows rows;
  const bool all = files.size() <= kFilesShown;
  for (std::size_t f = 0; f < files.size(); ++f) {
    if (!all && f == 3) rows.push_back({fmt::format("... {} more", files.size() - 4)});
    if (!all && f >= 3 && f + 1 < files.size()) continue;
    rows.push_back(
        {files[f].name, count_text(counts[f]) + " tensors", count_text(files[f].n_bytes)});
  }
  for (const formats::SideFile& side : checkpoint.side_files()) {
    rows.push_back({side.path, "", count_text(side.n_bytes)});
  }
  return text + text_table(rows, {false, true, true});
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

Json tally_json(std::string_view name, const Tally& tally) {
  return {{"name", name},
          {"tensors", tally.n_tensors},
          {"parameters", tally.n_parameters},
          {"bytes", tally.n_bytes}};
}

Json layers_json(const Summary& summary) {
  Json rows = Json::array();
  for (const LayerSummary& layer : summary.layers) {
    Json schemes = Json::object();
    for (const auto& [scheme, n] : layer.tensors_by_scheme) {
      schemes[std::string(formats::scheme_facts(scheme).name)] = n;
    }
    rows.push_back({{"layer", layer.layer},
                    {"kind", layer.kind},
                    {"tensors", layer.tally.n_tensors},
                    {"parameters", layer.tally.n_parameters},
                    {"bytes", layer.tally.n_bytes},
                    {"schemes", std::move(schemes)}});
  }
  return rows;
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

}  // namespace

std::string summary_text(std::string_view directory, const Checkpoint& checkpoint,
                         const Summary& summary) {
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
    text += fmt::format("MTP           {} beside them\n", parameters_text(summary.mtp_parameters));
  } else if (checkpoint.lacks_promised_mtp()) {
    text += fmt::format("MTP           {} layer(s) promised by config.json, none here\n",
                        checkpoint.config().num_nextn_predict_layers);
  }
  text += quantization_text(checkpoint, summary) + "\n";

  Rows by_dtype, by_scheme, by_role;
  for (const auto& [dtype, tally] : summary.by_dtype) {
    by_dtype.push_back(tally_row(std::string(formats::dtype_name(dtype)), tally));
  }
  for (const auto& [scheme, tally] : summary.by_scheme) {
    by_scheme.push_back(tally_row(std::string(formats::scheme_facts(scheme).name), tally));
  }
  for (const auto& [role, tally] : summary.by_role) {
    by_role.push_back(tally_row(std::string(formats::role_name(role)), tally));
  }
  // A stored dtype has elements: scales are no parameters.
  std::string dtypes = section("dtype", by_dtype);
  if (const std::size_t at = dtypes.find("parameters"); at != std::string::npos)
    dtypes.replace(at, 10, "  elements");
  text += dtypes + section("scheme", by_scheme) + section("role", by_role);
  if (!summary.layers.empty()) text += layer_table(summary);
  return text + files_text(checkpoint);
}

Json summary_json(const Checkpoint& checkpoint, const Summary& summary) {
  Json json = {{"family", checkpoint.family().name},
               {"dialect", checkpoint.dialect().name},
               {"parameters", summary.main_parameters},
               {"active_parameters",
                summary.active_parameters ? Json(*summary.active_parameters) : Json(nullptr)},
               {"mtp_parameters", summary.mtp_parameters},
               {"mtp_missing", checkpoint.lacks_promised_mtp()},
               {"tensors", summary.all.n_tensors},
               {"bytes", summary.all.n_bytes}};
  if (!checkpoint.is_whole()) json["joined_files"] = checkpoint.files().size();
  if (checkpoint.slicing() != nullptr)
    json["slicing"] = formats::slicing_record_json(*checkpoint.slicing());
  json["quantization"] = Json::array();
  for (const auto& [found, tally] : summary.quantization) {
    Json row = tally_json(formats::scheme_facts(found.scheme).name, tally);
    row["block"] = {found.block_rows, found.block_cols};
    row["scale_dtype"] = formats::dtype_name(found.scale_dtype);
    json["quantization"].push_back(std::move(row));
  }
  json["by_dtype"] = Json::array();
  for (const auto& [dtype, tally] : summary.by_dtype) {
    json["by_dtype"].push_back({{"name", formats::dtype_name(dtype)},
                                {"tensors", tally.n_tensors},
                                {"elements", tally.n_parameters},
                                {"bytes", tally.n_bytes}});
  }
  json["by_scheme"] = Json::array();
  for (const auto& [scheme, tally] : summary.by_scheme) {
    json["by_scheme"].push_back(tally_json(formats::scheme_facts(scheme).name, tally));
  }
  json["by_role"] = Json::array();
  for (const auto& [role, tally] : summary.by_role) {
    json["by_role"].push_back(tally_json(formats::role_name(role), tally));
  }
  json["layers"] = layers_json(summary);
  const std::vector<std::uint64_t> counts = tensors_by_file(checkpoint);
  json["files"] = Json::array();
  for (std::size_t f = 0; f < counts.size(); ++f) {
    json["files"].push_back({{"name", checkpoint.files()[f].name},
                             {"bytes", checkpoint.files()[f].n_bytes},
                             {"tensors", counts[f]}});
  }
  json["index"] = checkpoint.has_index();
  json["side_files"] = Json::array();
  for (const formats::SideFile& side : checkpoint.side_files()) {
    json["side_files"].push_back({{"name", side.path}, {"bytes", side.n_bytes}});
  }
  return json;
}

std::string tensors_text(const Checkpoint& checkpoint, std::span<const std::size_t> which) {
  Rows rows = {{"tensor", "role", "scheme", "dtype", "shape", "bytes", "file"}};
  for (const std::size_t i : which) {
    const LogicalTensor& tensor = checkpoint.tensors()[i];
    const StoredTensor& weight = checkpoint.stored()[tensor.encoding.stored.weight()];
    rows.push_back({tensor.name, std::string(formats::role_name(role_of(tensor))),
                    std::string(formats::scheme_facts(tensor.encoding.scheme).name),
                    std::string(formats::dtype_name(weight.dtype)),
                    formats::shape_text(tensor.shape), count_text(stored_bytes(checkpoint, tensor)),
                    checkpoint.files()[weight.file].name});
  }
  return text_table(rows, {false, false, false, false, false, true, false});
}

Json tensor_json(const Checkpoint& checkpoint, const LogicalTensor& tensor) {
  Json json = {{"name", tensor.name},
               {"role", formats::role_name(role_of(tensor))},
               {"layer", tensor.layer ? Json(*tensor.layer) : Json(nullptr)},
               {"expert", tensor.expert ? Json(*tensor.expert) : Json(nullptr)},
               {"shape", tensor.shape},
               {"scheme", formats::scheme_facts(tensor.encoding.scheme).name},
               {"parts", Json::array()}};
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
    const StoredTensor& stored = checkpoint.stored()[index];
    json["parts"].push_back({{"name", stored.name},
                             {"dtype", formats::dtype_name(stored.dtype)},
                             {"shape", stored.shape},
                             {"file", checkpoint.files()[stored.file].name},
                             {"offset", stored.offset},
                             {"bytes", stored.n_bytes}});
  });
  return json;
}

Json tensors_json(const Checkpoint& checkpoint, std::span<const std::size_t> which) {
  Json rows = Json::array();
  for (const std::size_t i : which)
    rows.push_back(tensor_json(checkpoint, checkpoint.tensors()[i]));
  return rows;
}

}  // namespace ingot::cli
