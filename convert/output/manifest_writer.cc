#include "convert/output/manifest_writer.h"

#include <algorithm>

#include "convert/output/model_card.h"
#include "convert/output/rank_directories.h"
#include "convert/output/staged_files.h"
#include "convert/output/tensor_records.h"
#include "convert/output/version.h"
#include "convert/plan/passes.h"
#include "convert/recipe/composition.h"
#include "formats/base/fd.h"
#include "formats/base/parallel.h"
#include "formats/config/native_config.h"
#include "formats/container/checkpoint_index.h"
#include "formats/dialect/dialect_words.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "formats/signed/file_digests.h"

namespace ingot::convert {

using formats::Manifest;
using formats::ManifestFile;
using formats::TensorRecord;

namespace {

Hash128 text_hash(const std::string& text) {
  TensorHasher hasher;
  hasher.update(std::as_bytes(std::span(text)));
  return hasher.finish();
}

// `folder`: empty, or that of a rank with a slash behind it.
ManifestFile write_derived(StagedFiles& staged, const std::string& folder, std::string name,
                           const std::string& text, Durable durable = Durable::kNow) {
  write_text_file(staged.make(folder + name), text, durable);
  return {.name = std::move(name), .n_bytes = text.size(), .hash = text_hash(text), .sha256 = {}};
}

// The checkpoints that gave the tensors, with their names on the hub and their licences.
formats::Json giver_list(const Plan& plan) {
  const auto givers = plan.source.givers();
  if (givers.empty()) return {};
  formats::Json list = formats::Json::array();
  for (std::size_t i = 0; i < givers.size(); ++i) {
    const SourceCard& card = plan.source_facts.giver_cards.at(i);
    formats::Json& row = list.emplace_back(formats::Json{{"name", givers[i].name}});
    if (!card.base_models.empty()) row["models"] = card.base_models;
    if (!card.commit.empty()) row["commit"] = card.commit;
    if (const std::string licence = licence_of(card); !licence.empty()) row["license"] = licence;
  }
  if (const ComposedFacts* composed = plan.recipe.choices.composed.get(); composed != nullptr) {
    for (const OverlayFacts& overlay : composed->overlays) {
      formats::Json& row = list.emplace_back(formats::Json{
          {"name", overlay.name},
          {"as", overlay.kind == GiverKind::kEdits ? formats::kAsEdits : formats::kAsOverlay}});
      if (!overlay.licence.empty()) row["license"] = overlay.licence;
    }
  }
  return list;
}

Manifest base_manifest(const Plan& plan, const StagingOptions& options) {
  const formats::Json& identity = options.identity;
  formats::Json recipe = identity.at("recipe");
  recipe["shards"] = identity.at("shards");
  for (const char* key : kOwnKeys) {
    if (identity.contains(key)) recipe[key] = identity.at(key);
  }
  Manifest manifest{.tool_version = std::string(kVersion),
                    .family = identity.at("family").get<std::string>(),
                    .dialect = std::string(plan.target.dialect->name),
                    .layout = std::string(plan.options.layout->name),
                    .recipe = std::move(recipe),
                    .source = identity.at("source"),
                    .source_quantization = plan.source_facts.quantization,
                    .files = {},
                    .side_files = {},
                    .n_tensors = 0,
                    .records_hash = {}};
  manifest.unverified = options.unverified;
  manifest.engine = plan.json.engine;
  manifest.sources = giver_list(plan);
  if (plan.is_sliced() && !plan.has_rank_directories()) {
    manifest.index = formats::checkpoint_index_text({.frame = index_frame(plan)}, 0);
    if (manifest.index == formats::checkpoint_index_text({}, 0)) manifest.index.clear();
  }
  return manifest;
}

// Files next to the weights of one directory, copied or derived, without the index.
std::vector<ManifestFile> write_side_files(const Plan& plan, StagedFiles& staged,
                                           const std::string& folder,
                                           const StagingOptions& options) {
  std::vector<ManifestFile> files;
  for (const formats::SideFile& side : copied_files(plan)) {
    const CopiedFile copied =
        copy_durably(plan.source.directory() / side.path, staged.make(folder + side.path));
    files.push_back(
        {.name = side.path, .n_bytes = copied.n_bytes, .hash = copied.hash, .sha256 = {}});
  }
  for (const auto& [name, text] : derived_files(plan, options.engines, options.gate))
    files.push_back(write_derived(staged, folder, name, text));
  return files;
}

// The hashes of the tensors of a member, in the order of their bytes.
std::vector<Hash128> tensor_hashes(const Plan& plan, const PlannedFile& file, std::uint32_t member,
                                   const std::vector<TensorResult>& results) {
  std::vector<Hash128> hashes;
  std::size_t part = 0;
  const auto add_parts = [&](std::size_t end) {
    for (; part < end; ++part) {
      const PartRef& at = file.parts.at(part);
      const PlannedSlice slice = slice_at(plan, plan.tensors[at.tensor], at, member);
      hashes.push_back(results[at.tensor].output.at(at.part).at(slice.hash));
    }
  };
  for (const PlannedFile::Joined& joined : file.joined) {
    if (joined.is_constant()) hashes.push_back(text_hash(joined.bytes));
    add_parts(part + joined.n_parts);
  }
  add_parts(file.parts.size());
  return hashes;
}

// Name, size and hash of every weights file on disk, by number; names are those below the directory
// of their manifest.
std::vector<ManifestFile> weights_files(const Plan& plan, const StagedFiles& staged,
                                        const std::vector<TensorResult>& hashes,
                                        const StagingOptions& options) {
  std::vector<ManifestFile> files(plan.n_members);
  parallel_for(plan.files.size(), options.threads, [&](std::size_t f) {
    const PlannedFile& file = plan.files[f];
    const std::string header = plan.header(f);
    for (std::uint32_t m = 0; m < file.members.size(); ++m) {
      const std::vector<Hash128> tensors = tensor_hashes(plan, file, m, hashes);
      const std::string& path = file.members[m].path;
      files[file.first_member + m] = {
          .name =
              plan.has_rank_directories() ? std::filesystem::path(path).filename().string() : path,
          .n_bytes = file.n_bytes,
          .hash = formats::weights_file_hash(std::as_bytes(std::span(header)), tensors),
          .sha256 =
              options.sha256 ? formats::sha256_of_file(staged.directory() / path) : std::string()};
    }
  });
  return files;
}

// Writes records and manifest, and returns the manifest's own hash.
Hash128 write_manifest(StagedFiles& staged, const std::string& folder, Manifest& manifest,
                       const std::vector<TensorRecord>& records, Durable durable) {
  manifest.n_tensors = records.size();
  manifest.records_hash = formats::write_tensor_records(
      staged.make(folder + std::string(formats::kRecordsName)), records, durable);
  const std::string text = formats::manifest_text(manifest);
  write_text_file(staged.make(folder + std::string(formats::kManifestName)), text, durable);
  if (durable == Durable::kNow) sync_directory(staged.directory() / folder);
  return text_hash(text);
}

// A record per tensor of the source, without the written tensors.
std::vector<TensorRecord> records_of_sources(const Plan& plan,
                                             const std::vector<TensorResult>& hashes) {
  std::vector<TensorRecord> records;
  records.reserve(plan.tensors.size());
  for (std::size_t index = 0; index < plan.tensors.size(); ++index) {
    const PlannedTensor& planned = plan.tensors[index];
    TensorRecord& record = records.emplace_back(record_of(plan, planned, hashes[index]));
    record.source = source_hashes(plan, planned, hashes[index]);
  }
  return records;
}

// One directory of the unsliced layouts, or of one file per rank.
Hash128 stage_single(const Plan& plan, StagedFiles& staged, Manifest manifest,
                     const std::vector<TensorResult>& hashes, std::vector<ManifestFile> weights,
                     const StagingOptions& options) {
  manifest.side_files = write_side_files(plan, staged, "", options);
  if (!plan.json.index.empty()) {
    manifest.side_files.push_back(
        write_derived(staged, "", std::string(formats::kIndexName), plan.json.index));
  }
  manifest.files = std::move(weights);
  std::vector<TensorRecord> records = records_of_sources(plan, hashes);
  for (std::size_t index = 0; index < records.size(); ++index) {
    const PlannedTensor& planned = plan.tensors[index];
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      for (const PlannedSlice& slice : slices_of(plan, planned, p))
        records[index].output.push_back(
            output_hash(plan, planned, p, slice, hashes[index], plan.member_path(slice.member)));
    }
    if (plan.is_sliced())
      records[index].home_file = unsliced_file(plan, planned, formats::Part::kWeight);
  }
  return write_manifest(staged, "", manifest, records, Durable::kNow);
}

// A directory per rank, and above them a manifest that knows theirs.
Hash128 stage_ranks(const Plan& plan, StagedFiles& staged, const Manifest& base,
                    const std::vector<TensorResult>& hashes,
                    const std::vector<ManifestFile>& weights, const StagingOptions& options) {
  const std::uint32_t n_ranks = plan.slicing->topology.n_ranks();
  const auto folder_of = [&](std::uint32_t rank) {
    return shard::rank_directory_name(rank, n_ranks) + "/";
  };
  const std::vector<ManifestFile> side_files =
      write_side_files(plan, staged, folder_of(0), options);
  std::vector<formats::RankEntry> entries(n_ranks);
  parallel_for(n_ranks, options.threads, [&](std::size_t r) {
    const auto rank = static_cast<std::uint32_t>(r);
    const std::string folder = folder_of(rank);
    Manifest manifest = base;
    manifest.slicing = rank_slicing_record(plan, *base.slicing, rank);
    for (const RankFile& file : files_of_rank(plan, rank)) {
      const PlannedFile& planned = plan.files[file.file];
      const std::string& path = planned.members[file.member].path;
      if (path != folder + file.name)
        staged.share(staged.directory() / path, folder + file.name, plan.options.links);
      manifest.files.push_back(weights[planned.first_member + file.member]);
    }
    manifest.side_files = side_files;
    if (rank > 0) {
      for (const ManifestFile& side : side_files)
        staged.share(staged.directory() / (folder_of(0) + side.name), folder + side.name,
                     plan.options.links);
    }
    manifest.side_files.push_back(write_derived(staged, folder, std::string(formats::kIndexName),
                                                rank_index_text(plan, rank), Durable::kLater));
    const Hash128 hash =
        write_manifest(staged, folder, manifest, rank_records(plan, rank, hashes), Durable::kLater);
    entries[rank] = {.directory = shard::rank_directory_name(rank, n_ranks), .manifest_hash = hash};
  });

  Manifest top = base;
  top.slicing->ranks = std::move(entries);
  const Hash128 hash =
      write_manifest(staged, "", top, records_of_sources(plan, hashes), Durable::kLater);
  // Thousands of files in hundreds of directories: one wait for the disk instead of one for each.
  sync_file_system(staged.directory());
  return hash;
}

Hash128 job_hash(const formats::Json& identity) {
  const std::string text = identity.dump();
  return hash_bytes(std::as_bytes(std::span(text)));
}

}  // namespace

std::vector<formats::SideFile> copied_files(const Plan& plan) {
  std::vector<formats::SideFile> files = plan.source.side_files();
  // A description of the source's codes would be wrong next to others.
  if (!plan.is_whole_copy && !plan.is_copy())
    std::erase_if(files, [](const formats::SideFile& file) {
      return formats::is_tool_description(file.path);
    });
  if (has_model_card(plan))
    std::erase_if(files, [](const formats::SideFile& file) { return file.path == kCardName; });
  return files;
}

std::vector<std::pair<std::string, std::string>> derived_files(
    const Plan& plan, std::span<const engines::EngineVerdict> engines,
    const formats::JsonValue& gate) {
  std::vector<std::pair<std::string, std::string>> files;
  if (has_model_card(plan)) files.emplace_back(kCardName, model_card_text(plan, engines, gate));
  if (!plan.json.description.empty())
    files.emplace_back(plan.target.dialect->description_file, plan.json.description);
  if (!plan.json.native_config.empty())
    files.emplace_back(formats::kNativeConfigName, plan.json.native_config);
  if (!plan.json.config.empty()) {
    files.emplace_back("config.json", plan.json.config);
    for (const std::string& folder : plan.json.config_folders)
      files.emplace_back(folder + "/config.json", plan.json.config);
  }
  // So that the output is read under the family of its source.
  if (const formats::Family& family = plan.source.family(); !family.file_hash.empty())
    files.emplace_back(formats::kFamilyFileName, family.yaml);
  return files;
}

Hash128 stage_side_files(const Plan& plan, StagedFiles& staged,
                         const std::vector<TensorResult>& hashes, const StagingOptions& options) {
  Manifest manifest = base_manifest(plan, options);
  if (plan.is_sliced()) manifest.slicing = slicing_record(plan, job_hash(options.identity));
  std::vector<ManifestFile> weights = weights_files(plan, staged, hashes, options);
  if (plan.has_rank_directories())
    return stage_ranks(plan, staged, manifest, hashes, weights, options);
  return stage_single(plan, staged, std::move(manifest), hashes, std::move(weights), options);
}

}  // namespace ingot::convert
