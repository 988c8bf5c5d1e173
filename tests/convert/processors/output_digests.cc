// output_digests SOURCE INPUTS FOLDER [OTHER]: makes outputs of a source in folders below FOLDER,
// and prints the digest of each, with its recipe, as OpenSSF Model Signing has it: the SHA-256 of
// all files, the manifest too, are hashed. INPUTS has an adapter and statistics. OTHER has the
// outputs of this program on another processor: each is derived again from the source and compared
// byte for byte. Exit code 1 where one differs.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "convert/convert.h"
#include "convert/recipe/kv_ranges.h"
#include "convert/recipe/statistics.h"
#include "convert/rederive.h"
#include "formats/adapters/lora.h"
#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/foreign_files.h"
#include "formats/base/hash.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/calibration.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"
#include "formats/signed/file_digests.h"
#include "formats/signed/statement.h"
#include "shard/cut/topology.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

// Each kind of encoder, each search of scales, each use of statistics, changed values, and a cut
// for ranks.
struct RecipeRow {
  const char* yaml;
  std::uint32_t tp = 1, ep = 1;
  enum class Inputs : std::uint8_t {
    kNone,
    kImportance,
    kRanges,
    kCache,
    kAdapter
  } inputs = Inputs::kNone;
};
using enum RecipeRow::Inputs;
constexpr RecipeRow kRecipes[] = {
    {"{to: bf16}"},
    {"{to: fp8}"},
    {"{to: fp8-channel, via: bf16}"},
    {"{to: int8}"},
    {"{to: nvfp4, search: mse}"},
    {"{to: nvfp4, search: 4over6, quantize-attention: true}"},
    {"{to: mxfp4}"},
    {"{to: mxfp8}"},
    {"{to: int4, group-size: 64, zero-points: true}"},
    {"{to: nvfp4, experts: stacked}"},
    {"{to: bf16}", 2, 4},
    {"{to: fp8, fp8-grid: ue8m0}"},
    {"{to: fp8-tensor}"},
    {"{to: int8-block}"},
    {"{to: int4, group-size: 32, search: signed}"},
    {"{to: nvfp4, search: mse}", 1, 1, kImportance},
    {"{to: int4, zero-points: true}", 1, 1, kImportance},
    {"{to: nvfp4, search: hessian}", 1, 1, kImportance},
    {"{to: nvfp4, gptq: true}", 1, 1, kImportance},
    {"{to: mxfp4, gptq: true}", 1, 1, kImportance},
    {"{to: int4, group-size: 32, gptq: true}", 1, 1, kImportance},
    {"{to: int8, dialect: modelslim, activations: static}", 1, 1, kRanges},
    {"{to: nvfp4, dialect: modelopt, activations: static}", 1, 1, kRanges},
    {"{to: fp8, dialect: compressed-tensors}", 1, 1, kCache},
    {"{to: nvfp4}", 1, 1, kAdapter},
    {"{to: bf16}", 1, 1, kAdapter}};

// Writes the record of a folder of statistics, which has a hash of each file.
void record_statistics(const fs::path& folder) {
  const fs::path path = folder / formats::kCalibrationName;
  if (fs::exists(path)) return;
  formats::CalibrationRecord record{.tool_version = "made", .documents = 1, .tokens = 600};
  std::vector<std::string> names = {std::string(formats::kInputsName),
                                    std::string(formats::kCacheName),
                                    std::string(formats::kBlocksName)};
  for (const std::string& name : formats::names_in(folder / formats::kMomentsFolder))
    names.push_back(std::string(formats::kMomentsFolder) + "/" + name);
  for (const std::string& name : names) {
    const std::string text = read_text_file(folder / name, std::uint64_t{1} << 30);
    TensorHasher hasher;
    hasher.update(std::as_bytes(std::span(text)));
    record.files.push_back({.name = name, .n_bytes = text.size(), .hash = hasher.finish()});
  }
  write_text_file(path, formats::calibration_text(record), Durable::kLater);
}

// Reads the files of a row.
void add_inputs(RecipeRow::Inputs which, const fs::path& inputs, convert::Choices& choices) {
  const std::string statistics = (inputs / "statistics").string();
  if (which == kImportance) {
    choices.importance =
        std::make_shared<const convert::Importance>(convert::Importance::read(statistics));
  } else if (which == kRanges) {
    choices.activation_scales = std::make_shared<const convert::ActivationScales>(
        convert::ActivationScales::read(statistics));
  } else if (which == kCache) {
    choices.kv_scales =
        std::make_shared<const convert::KvRanges>(convert::KvRanges::read(statistics));
  } else if (which == kAdapter) {
    choices.lora = (inputs / "adapter").string();
    choices.editors.push_back(
        std::make_shared<const formats::LoraAdapter>(choices.lora, choices.lora_options));
  }
}

convert::PlanOptions options_of(const RecipeRow& row) {
  convert::PlanOptions options;
  if (row.tp * row.ep == 1) return options;
  options.layout = formats::find_layout("ranks");
  options.slicing.topology = shard::make_topology(row.tp, row.ep, std::nullopt, 1);
  return options;
}

int run(const fs::path& source, const fs::path& inputs, const fs::path& folder,
        const fs::path& other) {
  int status = 0;
  record_statistics(inputs / "statistics");
  for (std::size_t i = 0; i < std::size(kRecipes); ++i) {
    const RecipeRow& row = kRecipes[i];
    const convert::PlanOptions options = options_of(row);
    convert::Recipe recipe = convert::parse_recipe(row.yaml, "recipe");
    add_inputs(row.inputs, inputs, recipe.choices);
    const auto seen =
        convert::as_written(std::make_shared<const formats::Checkpoint>(
                                formats::Checkpoint::open(source, {.family = "", .threads = 1})),
                            recipe, options);
    const convert::Plan plan = convert::plan_conversion(*seen, std::move(recipe), options);
    const fs::path output = folder / std::to_string(i);
    convert::execute(plan, output, {});
    // Equal records are promised, and no equal frames of zstd; the manifest has a hash of the
    // former.
    const auto files =
        formats::digest_files(output, {.ignored = {}, .leaves_out = [](std::string_view name) {
                                         return name.ends_with(formats::kRecordsName);
                                       }});
    const auto statement = formats::model_signing_statement("", files, {});
    fmt::print("{}  {} files of {} tp {} ep {} inputs {}\n", statement.subjects.front().sha256,
               files.size(), row.yaml, row.tp, row.ep, static_cast<int>(row.inputs));
    if (other.empty()) continue;
    const convert::RederiveReport report = convert::rederive(
        plan, other / std::to_string(i), {.sample = std::nullopt, .threads = 1, .progress = {}});
    for (const auto& tensor : report.tensors)
      fmt::print(stderr, "{}: differs in '{}'\n", row.yaml, tensor.part);
    for (const auto& file : report.files)
      fmt::print(stderr, "{}: {} {}\n", row.yaml, file.file, file.fact);
    if (!report.passed()) status = 1;
  }
  return status;
}

}  // namespace
}  // namespace ingot

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  try {
    return ingot::run(argv[1], argv[2], argv[3], argc > 4 ? argv[4] : "");
  } catch (const ingot::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
