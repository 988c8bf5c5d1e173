#include "convert/manifest_writer.h"

#include <algorithm>

#include <fcntl.h>

#include "convert/fingerprint.h"
#include "convert/version.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/manifest.h"

namespace ingot::convert {

using formats::Checkpoint;
using formats::LogicalTensor;
using formats::Manifest;
using formats::ManifestFile;
using formats::StoredTensor;
using formats::TensorRecord;

namespace {

constexpr std::size_t kCopyBytes = std::size_t{1} << 20;

// Calls `take` with the file's bytes, in order.
template <typename Take>
void for_each_piece(const Fd& file, Take&& take) {
  const std::uint64_t size = file.size();
  std::vector<std::byte> buffer(kCopyBytes);
  for (std::uint64_t done = 0; done < size;) {
    const auto piece = std::span(buffer).first(std::min<std::uint64_t>(buffer.size(), size - done));
    file.read_exact(piece, done);
    take(std::span<const std::byte>(piece), done);
    done += piece.size();
  }
}

ManifestFile copy_side_file(const std::filesystem::path& from, const std::filesystem::path& to,
                            std::string name) {
  std::filesystem::create_directories(to.parent_path());
  const Fd source = Fd::open_for_reading(from);
  Fd target = Fd::open_for_writing(to, O_WRONLY | O_CREAT | O_TRUNC);
  TensorHasher hasher;
  std::uint64_t n_bytes = 0;
  for_each_piece(source, [&](std::span<const std::byte> piece, std::uint64_t offset) {
    target.write_exact(piece, offset);
    hasher.update(piece);
    n_bytes += piece.size();
  });
  target.sync();
  target.close();
  return {.name = std::move(name), .n_bytes = n_bytes, .hash = hasher.finish(), .sha256 = {}};
}

ManifestFile write_derived(const OutputPaths& paths, std::string name, const std::string& text) {
  write_text_file(paths.staged / name, text);
  TensorHasher hasher;
  hasher.update(std::as_bytes(std::span(text)));
  return {.name = std::move(name), .n_bytes = text.size(), .hash = hasher.finish(), .sha256 = {}};
}

std::string sha256_of(const std::filesystem::path& path) {
  Sha256 sha;
  for_each_piece(Fd::open_for_reading(path),
                 [&](std::span<const std::byte> piece, std::uint64_t) { sha.update(piece); });
  return sha.finish_hex();
}

TensorRecord record_of(const Plan& plan, const Checkpoint& source, const PlannedTensor& planned,
                       const ItemRecord& hashes) {
  const LogicalTensor& tensor = source.tensors()[planned.tensor];
  TensorRecord record{.name = tensor.name,
                      .role = std::string(formats::role_name(tensor.rule ? tensor.rule->role
                                                                         : formats::Role::kOther)),
                      .layer = tensor.layer,
                      .expert = tensor.expert,
                      .action = std::string(action_name(planned.action)),
                      .from = std::string(formats::scheme_facts(tensor.encoding.scheme).name),
                      .to = std::string(formats::scheme_facts(planned.to).name),
                      .source = {},
                      .output = {}};
  std::size_t next = 0;
  if (planned.action != Action::kDrop) {
    tensor.encoding.stored.for_each([&](formats::Part, std::uint32_t index) {
      const StoredTensor& stored = source.stored()[index];
      record.source.push_back({.name = stored.name,
                               .file = source.files()[stored.file].name,
                               .dtype = std::string(formats::dtype_name(stored.dtype)),
                               .shape = stored.shape,
                               .hash = hashes.source.at(next++)});
    });
  }
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    record.output.push_back({.name = plan.part_name(source, planned, p),
                             .file = plan.files[planned.parts[p].file].name,
                             .dtype = std::string(formats::dtype_name(planned.parts[p].dtype)),
                             .shape = plan.part_shape(source, planned, p),
                             .hash = hashes.output[p]});
  }
  if (hashes.quality) {
    const quantize::QualitySums& sums = *hashes.quality;
    record.error = {.relative_error = sums.relative_error(),
                    .sqnr_db = sums.sqnr_db(),
                    .cosine = sums.cosine(),
                    .max_error = sums.max_error,
                    .elements = sums.elements,
                    .saturated = sums.saturated,
                    .zeroed = sums.zeroed,
                    .blocks = sums.blocks,
                    .exact_blocks = sums.exact_blocks};
  }
  record.original_global = hashes.original_global;
  return record;
}

}  // namespace

formats::Json remembered_quantization(const Checkpoint& source) {
  const formats::Json& config = source.config().raw;
  if (config.is_object() && config.contains("quantization_config"))
    return config.at("quantization_config");
  const auto manifest = formats::read_manifest(source.directory());
  return manifest ? manifest->source_quantization : formats::Json();
}

void stage_side_files(const Plan& plan, const Checkpoint& source, const OutputPaths& paths,
                      const formats::Json& identity, const std::vector<ItemRecord>& hashes,
                      bool sha256, std::size_t threads) {
  Manifest manifest{.tool_version = std::string(kVersion),
                    .family = std::string(source.family().name),
                    .dialect = std::string(plan.dialect->name),
                    .layout = "hf",
                    .recipe = identity.at("recipe"),
                    .source = identity.at("source"),
                    .source_quantization = remembered_quantization(source),
                    .files = {},
                    .side_files = {},
                    .n_tensors = 0,
                    .records_hash = {}};
  manifest.recipe["shards"] = identity.at("shards");

  for (const formats::SideFile& side : source.side_files()) {
    manifest.side_files.push_back(
        copy_side_file(source.directory() / side.path, paths.staged / side.path, side.path));
  }
  if (!plan.description_text.empty()) {
    manifest.side_files.push_back(
        write_derived(paths, std::string(plan.dialect->description_file), plan.description_text));
  }
  if (!plan.config_text.empty()) {
    manifest.side_files.push_back(write_derived(paths, "config.json", plan.config_text));
  }
  if (!plan.index_text.empty()) {
    manifest.side_files.push_back(
        write_derived(paths, "model.safetensors.index.json", plan.index_text));
  }

  manifest.files.resize(plan.files.size());
  parallel_for(plan.files.size(), threads, [&](std::size_t f) {
    const PlannedFile& file = plan.files[f];
    const std::string header = plan.header(source, f);
    std::vector<Hash128> tensors;
    for (const auto& [item, part] : file.parts) tensors.push_back(hashes[item].output.at(part));
    manifest.files[f] = {
        .name = file.name,
        .n_bytes = file.n_bytes,
        .hash = formats::weights_file_hash(std::as_bytes(std::span(header)), tensors),
        .sha256 = sha256 ? sha256_of(paths.staged / file.name) : std::string()};
  });

  std::vector<TensorRecord> records;
  records.reserve(plan.tensors.size());
  for (std::size_t item = 0; item < plan.tensors.size(); ++item) {
    records.push_back(record_of(plan, source, plan.tensors[item], hashes[item]));
  }
  manifest.n_tensors = records.size();
  manifest.records_hash =
      formats::write_tensor_records(paths.staged / formats::kRecordsName, records);
  write_text_file(paths.staged / formats::kManifestName, formats::manifest_text(manifest));
  sync_directory(paths.staged);
}

}  // namespace ingot::convert
