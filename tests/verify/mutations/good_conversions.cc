#include "tests/verify/mutations/good_conversions.h"

#include "check/stored_hashes.h"
#include "formats/records/manifest.h"
#include "shard/join/rank_directories.h"
#include "tests/convert/slicing/sliced.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"

namespace ingot::testing {

namespace fs = std::filesystem;

namespace {

void run(const Pair& pair, std::optional<formats::SchemeId> to, std::string dialect = "",
         const Cut& cut = {}) {
  Conversion conversion(pair.source, pair.output);
  conversion.recipe.to = to;
  // Every engine loads ModelOpt's NVFP4 with static inputs.
  if (dialect == "modelopt") {
    conversion.recipe.choices.activations = formats::Activations::kStatic;
    conversion.recipe.choices.input_scale = 1.0F;
  }
  if (!dialect.empty()) conversion.recipe.choices.dialect = std::move(dialect);
  if (cut.tp != 1) conversion.plan = cut.options();
  conversion.run();
}

void run_native(const Pair& pair) {
  Conversion conversion(pair.source, pair.output);
  conversion.recipe.mtp = convert::MtpPolicy::kDrop;
  conversion.plan.layout = formats::find_layout("deepseek-mp");
  conversion.plan.slicing.topology = shard::make_topology(2, 2, 1, 1);
  conversion.run();
}

// The example, of which a block of one weight is zero.
fs::path example_with_zeros(const fs::path& directory) {
  fs::create_directories(directory.parent_path());
  copy_example(directory);
  EditedWeights weights(directory);
  EditedTensor& weight = weights.at(std::string(kZeroWeight));
  const std::size_t columns = weight.shape[1];
  for (std::size_t row = 0; row < weight.shape[0]; ++row)
    for (std::size_t column = 0; column < 128; ++column)
      weight.set<char>(row * columns + column, 0);
  weights.save();
  return directory;
}

// The hash of the bytes that are there now.
Hash128 hash_of(const EditedTensor& tensor) {
  TensorHasher hasher;
  hasher.update(std::as_bytes(std::span(tensor.bytes)));
  return hasher.finish();
}

void forget_in_records(const fs::path& rank, formats::Manifest& manifest) {
  const EditedWeights weights(rank);
  std::vector<formats::TensorRecord> kept;
  for (const formats::TensorRecord& record :
       formats::read_tensor_records(rank / formats::kRecordsName, manifest.records_hash)) {
    formats::TensorRecord bare{.name = record.name, .role = record.role, .action = "copy"};
    bare.layer = record.layer;
    bare.expert = record.expert;
    bare.from = bare.to = record.to;
    for (formats::TensorHash tensor : record.output) {
      if (!weights.has(tensor.name)) continue;
      const EditedTensor& here = weights.read(tensor.name);
      tensor.hash = hash_of(here);
      tensor.dtype = formats::dtype_name(here.dtype);
      tensor.shape = here.shape;
      bare.output.push_back(std::move(tensor));
    }
    kept.push_back(std::move(bare));
  }
  fs::remove(rank / formats::kRecordsName);
  manifest.records_hash = formats::write_tensor_records(rank / formats::kRecordsName, kept);
}

void forget_in_rank(const fs::path& rank) {
  formats::Manifest manifest = formats::read_manifest(rank).value();
  manifest.recipe = formats::Json::object();
  manifest.source = formats::Json();
  manifest.source_quantization = formats::Json();
  forget_in_records(rank, manifest);
  for (formats::ManifestFile& file : manifest.files) {
    const Fd fd = Fd::open_for_reading(rank / file.name);
    file.n_bytes = fd.size();
    std::vector<Hash128> hashes;
    for (const formats::StoredTensor& tensor : formats::read_safetensors_header(fd).tensors) {
      hashes.push_back(
          check::hash_range(tensor.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
            fd.read_exact(out, tensor.offset + offset);
          }));
    }
    file.hash = formats::weights_file_hash(formats::read_safetensors_header_bytes(fd), hashes);
  }
  for (formats::ManifestFile& file : manifest.side_files) {
    file.n_bytes = fs::file_size(rank / file.name);
    file.hash = check::hash_file(rank / file.name);
  }
  fs::remove(rank / formats::kManifestName);
  std::ofstream(rank / formats::kManifestName) << formats::manifest_text(manifest);
}

Pair convert_well(Good good, const fs::path& directory) {
  using formats::SchemeId;
  Pair pair{.source = tiny_v32(), .output = directory / "output"};
  switch (good) {
    case Good::kBf16:
      run(pair, SchemeId::kBf16);
      break;
    case Good::kFp8:
      run(pair, std::nullopt);
      break;
    case Good::kFp8Channel:
      run(pair, SchemeId::kFp8Channel);
      break;
    case Good::kInt8:
      run(pair, SchemeId::kInt8Channel, "compressed-tensors");
      break;
    case Good::kInt8Modelslim:
      run(pair, SchemeId::kInt8Channel, "modelslim");
      break;
    case Good::kNvfp4Modelopt:
      run(pair, SchemeId::kNvfp4, "modelopt");
      break;
    case Good::kNvfp4Ct:
      run(pair, SchemeId::kNvfp4, "compressed-tensors");
      break;
    case Good::kMxfp4:
      run(pair, SchemeId::kMxfp4);
      break;
    case Good::kBf16OfMxfp4:
      run({.source = pair.source, .output = directory / "source"}, SchemeId::kMxfp4);
      pair.source = directory / "source";
      run(pair, SchemeId::kBf16);
      break;
    case Good::kBf16OfZeros:
      pair.source = example_with_zeros(directory / "source");
      run(pair, SchemeId::kBf16);
      break;
    case Good::kNvfp4OfZeros:
      pair.source = example_with_zeros(directory / "source");
      run(pair, SchemeId::kNvfp4, "modelopt");
      break;
    case Good::kInt8Ranks:
      run(pair, SchemeId::kInt8Channel, "compressed-tensors", {.tp = 2, .ep = 2});
      break;
    case Good::kNvfp4Ranks:
      run(pair, SchemeId::kNvfp4, "modelopt", {.tp = 2, .ep = 4});
      break;
    case Good::kBf16Shards:
      run_native(pair);
      break;
  }
  return pair;
}

}  // namespace

const Pair& good_conversion(Good good) {
  static const TempDir directory;
  static std::map<Good, Pair> made;
  const auto [at, is_new] = made.try_emplace(good);
  if (is_new) at->second = convert_well(good, directory / std::to_string(static_cast<int>(good)));
  return at->second;
}

Pair copy_of_good(Good good, const fs::path& directory) {
  Pair pair{.source = good_conversion(good).source, .output = directory / "output"};
  fs::create_directories(directory);
  fs::copy(good_conversion(good).output, pair.output,
           fs::copy_options::recursive | fs::copy_options::create_hard_links);
  return pair;
}

void convert_for_other_topology(const fs::path& output) {
  run({.source = tiny_v32(), .output = output}, formats::SchemeId::kInt8Channel,
      "compressed-tensors", {.tp = 4});
}

void forget_the_conversion(const fs::path& output) {
  fs::remove(output / formats::kManifestName);
  fs::remove(output / formats::kRecordsName);
  for (const std::string& name : shard::rank_directories_in(output)) forget_in_rank(output / name);
}

}  // namespace ingot::testing
