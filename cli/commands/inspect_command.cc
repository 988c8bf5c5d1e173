#include <algorithm>
#include <cstddef>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands/commands.h"
#include "cli/report/fit.h"
#include "cli/report/inspect_report.h"
#include "cli/terminal/answer.h"
#include "cli/terminal/output_guard.h"
#include "cli/terminal/terminal.h"
#include "formats/base/parallel.h"
#include "formats/base/printable.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "library/as_stored.h"
#include "library/inspection.h"
#include "library/options/family_learning.h"
#include "library/options/flag_table.h"
#include "quantize/tensor_statistics.h"
#include "report/figures.h"
#include "report/table_text.h"
#include "shard/join/source.h"

namespace ingot::cli {

using formats::Checkpoint;
using formats::Json;
using formats::LogicalTensor;
using formats::StoredTensor;
using quantize::TensorStatistics;

namespace {

// Rows of the histogram; values below are counted together.
constexpr std::size_t kHistogramRows = 20;

std::string histogram_text(const Json& rows) {
  if (rows.empty()) return "";
  std::uint64_t most = 0, below = 0;
  for (const Json& row : rows) most = std::max(most, row["count"].get<std::uint64_t>());
  Table table{.columns = {number(""), number(""), ""}};
  for (const Json& row : rows) {
    const std::uint64_t n = row["count"];
    if (table.rows.size() == kHistogramRows) {
      below += n;
      continue;
    }
    const auto cells =
        static_cast<std::size_t>(40.0 * static_cast<double>(n) / static_cast<double>(most) + 0.5);
    table.rows.push_back({row["exponent"].is_null() ? "subnormal" : "2^" + row["exponent"].dump(),
                          count_text(n), std::string(cells, '#')});
  }
  if (below > 0) table.rows.push_back({"smaller", count_text(below)});
  return "  magnitudes from\n" + table_text(table, report_width());
}

std::string statistics_text(const TensorStatistics& statistics) {
  const double share = statistics.count() == 0 ? 0
                                               : 100 * static_cast<double>(statistics.zeros()) /
                                                     static_cast<double>(statistics.count());
  std::string text =
      fmt::format("  values  {}, {} zero ({:.2f}%), {} NaN, {} infinite\n",
                  count_text(statistics.count()), count_text(statistics.zeros()), share,
                  count_text(statistics.nans()), count_text(statistics.infinities()));
  text += fmt::format("  range   {} to {}, amax {}\n", statistics.min(), statistics.max(),
                      statistics.amax());
  text += fmt::format("  mean    {:.6g}, rms {:.6g}\n", statistics.mean(), statistics.rms());
  return text + histogram_text(library::histogram_rows(statistics));
}

/// One tensor: its place, and its values.
std::string tensor_text(const Checkpoint& checkpoint, const LogicalTensor& tensor,
                        const std::optional<TensorStatistics>& statistics) {
  std::string text = printable(tensor.name) + "\n";
  text += fmt::format("  role    {}", formats::role_name(role_of(tensor)));
  if (tensor.layer) text += fmt::format(", layer {}", *tensor.layer);
  if (tensor.expert) text += fmt::format(", expert {}", *tensor.expert);
  text += fmt::format("\n  scheme  {}", scheme_name(tensor.encoding.scheme));
  if (tensor.encoding.block_cols > 0) {
    text +=
        fmt::format(", blocks of {}x{}", tensor.encoding.block_rows, tensor.encoding.block_cols);
  }
  text += fmt::format("\n  shape   {}\n", formats::shape_text(tensor.shape));
  tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
    const StoredTensor& stored = checkpoint.stored()[index];
    text += fmt::format("  stored  {} {} {}, {} bytes at byte {} of {}\n", printable(stored.name),
                        formats::dtype_name(stored.dtype), formats::shape_text(stored.shape),
                        count_text(stored.n_bytes), stored.offset,
                        printable(checkpoint.files()[stored.file].name));
  });
  if (statistics) return text + statistics_text(*statistics);
  return text + "  values  not shown: this dtype is copied, never computed with\n";
}

std::string tensors_text(const Checkpoint& checkpoint, const std::vector<std::size_t>& which) {
  const library::AsStored as_stored(checkpoint);
  Table table{.columns = {"tensor", "role", "scheme", "dtype", "shape", number("bytes"), "file"}};
  for (const std::size_t i : which) {
    const LogicalTensor& tensor = checkpoint.tensors()[i];
    const StoredTensor& weight = checkpoint.stored()[tensor.encoding.stored.weight()];
    table.rows.push_back({tensor.name, formats::role_name(role_of(tensor)),
                          scheme_name(tensor.encoding.scheme), formats::dtype_name(weight.dtype),
                          formats::shape_text(tensor.shape), count_text(as_stored.n_bytes(tensor)),
                          checkpoint.files()[weight.file].name});
  }
  return table_text(table, report_width());
}

struct InspectFlags {
  std::string directory, pattern, family, config;
  FitFlags fit;
  bool accept_family = false;
  bool tensors = false;
};

// A pattern asks for tensors: one is shown with its values, several are listed.
int run_inspect(const InspectFlags& flags) {
  const std::size_t threads = available_processors();
  const auto open = [&](const std::string& family) {
    return shard::open_source(
        flags.directory,
        {.open = {.family = family, .unknown_as_generic = true, .threads = threads},
         .may_be_file = true,
         .config = flags.config});
  };
  std::string family = flags.family;
  if (family == library::kAutoFamily) {
    formats::FamilyEvidence evidence;
    const formats::LearnedFamily learned = library::learned_family(open, evidence);
    answer().add({{"proposal", {{"yaml", learned.yaml}, {"proven", learned.is_proven()}}}});
    if (!flags.accept_family) {
      if (!answer().is_json) write_data(learned.yaml);
      return kExitDone;
    }
    family = formats::add_family(learned.yaml, "the family made for it").spec;
  }
  const Checkpoint checkpoint = open(family);
  std::vector<std::string> remarks = checkpoint.remarks();
  if (std::string excess = library::excess_of(checkpoint, flags.pattern); !excess.empty())
    remarks.push_back(std::move(excess));
  warn_of(flags.directory, remarks);
  Json json = {{"directory", flags.directory}};
  std::string text;
  int code = kExitDone;
  if (asks_for_schemes(flags.fit)) {
    const std::vector<SchemeFit> fits = fits_of_schemes(flags.fit, checkpoint);
    const bool fits_somehow =
        std::ranges::any_of(fits, [](const SchemeFit& row) { return row.fit && row.fit->fits(); });
    json["passed"] = fits_somehow;
    if (!fits_somehow) code = kExitBelowThreshold;
    text = scheme_fits_text(fits);
    json["fits"] = scheme_fits_json(fits);
  } else if (flags.fit.loading) {
    const Loading loading = loading_of(flags.fit, checkpoint);
    text = loading_text(loading);
    json["loading"] = loading_json(loading);
  } else if (flags.fit.is_asked()) {
    const Fit fit = fit_of(flags.fit, checkpoint);
    json["passed"] = fit.fits();
    if (!fit.fits()) code = kExitBelowThreshold;
    text = fit_text(fit);
    json["fit"] = fit_json(fit);
  } else if (answer().is_json) {
    json.update(library::inspect_json(checkpoint, flags.pattern, flags.tensors, threads));
  } else if (flags.tensors || !flags.pattern.empty()) {
    const std::vector<std::size_t> which = library::matching_tensors(checkpoint, flags.pattern);
    if (which.size() == 1 && !flags.tensors) {
      const formats::LogicalTensor& tensor = checkpoint.tensors()[which[0]];
      text =
          tensor_text(checkpoint, tensor, library::tensor_statistics(checkpoint, tensor, threads));
    } else {
      text = tensors_text(checkpoint, which);
    }
  } else {
    text = summary_text(flags.directory, checkpoint);
  }
  if (!answer().is_json) out() << text;
  answer().add(json);
  return code;
}

}  // namespace

std::function<int()> declare_inspect(FlagTable& table) {
  auto flags = std::make_shared<InspectFlags>();
  table.add(FlagGroup::kCommon,
            {required("directory", &flags->directory, kPathHelp, ValueKind::kCheckpointOrFile),
             {"pattern",
              &flags->pattern,
              "tensors as a rule selects them: a glob, re:EXPR, role:NAME, layers:LIST, or several "
              "with &; one that matches a single tensor shows its values",
              {.excludes = {"--gpu-memory", "--gpu", "--loading"}}},
             {"--tensors",
              &flags->tensors,
              "list tensors, with pattern those that match",
              {.excludes = {"--gpu-memory", "--gpu", "--loading"}}}});
  declare_source(table, flags->family, flags->config, library::kAutoFamilyHelp);
  table.add(FlagGroup::kSource, {library::accept_flag(flags->accept_family, flags->family)});
  declare_fit(table, flags->fit);
  table.add(FlagGroup::kReport, {json_flag(&answer().is_json)});
  table.footer =
      "Examples:\n"
      "  ingot inspect DeepSeek-V3.2\n"
      "  ingot inspect DeepSeek-V3.2 model.layers.3.mlp.experts.17.up_proj.weight\n"
      "  ingot inspect DeepSeek-V3.2 --tensors 'model.layers.61.*'\n"
      "  ingot inspect DeepSeek-V3.2 --tensors 'layers:0-2 & role:attention'\n"
      "  ingot inspect DeepSeek-V3.2 --gpu-memory 80GB --tp 8 --ep 16 --kv-cache fp8 --context "
      "128k\n"
      "  ingot inspect DeepSeek-V3.2 --gpu-memory 80GB --tp 8 --to nvfp4       before it is made\n"
      "  ingot inspect DeepSeek-V3.2 --gpu h100                                how many are "
      "needed\n"
      "  ingot inspect DeepSeek-V3.2 --gpu h100 --count 8                      in which schemes it "
      "fits\n"
      "  ingot inspect DeepSeek-V3.2 --loading --tp 8 --ep 8                   bytes that ranks "
      "read\n"
      "  ingot inspect SOME-OTHER-MODEL --family generic --json";
  return [flags] { return run_inspect(*flags); };
}

}  // namespace ingot::cli
