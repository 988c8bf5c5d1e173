// output_digests SOURCE FOLDER [OTHER]: makes outputs of a source in folders below FOLDER, and
// prints the digest of each, with its recipe, as OpenSSF Model Signing has it: over the SHA-256 of
// all files, the manifest too. OTHER has the outputs of the same program for another processor: each
// is derived again from the source and compared byte for byte. Exit code 1 where one differs.

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include <fmt/format.h>

#include "convert/convert.h"
#include "convert/rederive.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"
#include "formats/signed/file_digests.h"
#include "formats/signed/statement.h"
#include "shard/cut/topology.h"

namespace ingot {
namespace {

namespace fs = std::filesystem;

// Each kind of encoder, each search of scales, and a cut for ranks.
struct RecipeRow {
  const char* yaml;
  std::uint32_t tp = 1, ep = 1;
};
constexpr RecipeRow kRecipes[] = {{"{to: bf16}"},
                                  {"{to: fp8}"},
                                  {"{to: fp8-channel, via: bf16}"},
                                  {"{to: int8}"},
                                  {"{to: nvfp4, search: mse}"},
                                  {"{to: nvfp4, search: 4over6, quantize-attention: true}"},
                                  {"{to: mxfp4}"},
                                  {"{to: mxfp8}"},
                                  {"{to: int4, group-size: 64, zero-points: true}"},
                                  {"{to: nvfp4, experts: stacked}"},
                                  {"{to: bf16}", 2, 4}};

convert::PlanOptions options_of(const RecipeRow& row) {
  convert::PlanOptions options;
  if (row.tp * row.ep == 1) return options;
  options.layout = formats::find_layout("ranks");
  options.slicing.topology = shard::make_topology(row.tp, row.ep, std::nullopt, 1);
  return options;
}

int run(const fs::path& source, const fs::path& folder, const fs::path& other) {
  int status = 0;
  for (std::size_t i = 0; i < std::size(kRecipes); ++i) {
    const RecipeRow& row = kRecipes[i];
    const convert::PlanOptions options = options_of(row);
    convert::Recipe recipe = convert::parse_recipe(row.yaml, "recipe");
    const auto seen =
        convert::as_written(std::make_shared<const formats::Checkpoint>(
                                formats::Checkpoint::open(source, {.family = "", .threads = 1})),
                            recipe, options);
    const convert::Plan plan = convert::plan_conversion(*seen, std::move(recipe), options);
    const fs::path output = folder / std::to_string(i);
    convert::execute(plan, output, {});
    // Equal records are promised, and no equal frames of zstd; the manifest has a hash of the former.
    const auto files = formats::digest_files(
        output, {.ignored = {}, .leaves_out = [](std::string_view name) {
                   return name.ends_with(formats::kRecordsName);
                 }});
    const auto statement = formats::model_signing_statement("", files, {});
    fmt::print("{}  {} files of {} tp {} ep {}\n", statement.subjects.front().sha256, files.size(),
               row.yaml, row.tp, row.ep);
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
  if (argc < 3) return 2;
  try {
    return ingot::run(argv[1], argv[2], argc > 3 ? argv[3] : "");
  } catch (const ingot::Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 2;
  }
}
