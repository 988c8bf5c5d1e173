#include <algorithm>
#include <set>

#include <fmt/format.h>

#include "formats/base/parallel.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "shard/join/rank_directories.h"
#include "shard/join/slice_files.h"
#include "shard/join/slice_join.h"
#include "shard/join/whole_config.h"

namespace ingot::shard {

using formats::Manifest;

namespace {

// So many directories are read at a time: each takes tens of megabytes until it is joined.
constexpr std::size_t kMaxAtOnce = 8;
constexpr std::string_view kWeightsSuffix = ".safetensors";

// Weights that the manifest does not know would be left out in silence.
void refuse_strangers(const RankDirectory& rank, ErrorList& faults) {
  std::set<std::string_view> known;
  for (const formats::ManifestFile& file : rank.manifest.files) known.insert(file.name);
  for (const std::string& name : formats::list_file_names(rank.path)) {
    if (!name.ends_with(kWeightsSuffix) || known.contains(name)) continue;
    faults.add(Error(ErrorCode::kMismatch,
                     fmt::format("is not named by {} (move the file away)", formats::kManifestName))
                   .in_file((rank.path / name).string()));
  }
}

}  // namespace

formats::AssembledModel join_ranks(std::vector<RankDirectory> ranks, bool compare_replicas,
                                   const formats::OpenOptions& options) {
  ErrorList faults;
  FileNumbers numbers;
  std::vector<std::vector<SliceFile>> own(ranks.size());
  for (std::uint32_t i = 0; i < ranks.size(); ++i) {
    refuse_strangers(ranks[i], faults);
    for (const formats::ManifestFile& file : ranks[i].manifest.files) {
      try {
        const auto [index, is_new] =
            numbers.number(ranks[i].path / file.name,
                           fmt::format("{}/{}", ranks[i].name, file.name), file.n_bytes, i);
        if (is_new) own[i].push_back({.index = index, .name = file.name});
      } catch (const Error& error) {
        faults.add(error);
      }
    }
  }
  faults.throw_if_any();

  std::vector<formats::WeightsFile> files = numbers.take_files();
  SliceJoin join(std::move(files), numbers.take_holders());
  std::vector<ErrorList> of_rank(ranks.size());
  parallel_for(ranks.size(), std::clamp<std::size_t>(options.threads, 1, kMaxAtOnce),
               [&](std::size_t i) {
                 add_recorded(
                     join, own[i], ranks[i].path, ranks[i].manifest.records_hash,
                     [](const std::string& name) { return name; }, of_rank[i]);
               });
  for (const ErrorList& list : of_rank) {
    for (const Error& error : list.errors()) faults.add(error);
  }
  faults.throw_if_any();
  JoinedModel joined = join.finish();

  const RankDirectory& first = ranks[0];
  const Manifest& manifest = first.manifest;
  formats::AssembledModel model;
  model.directory = first.path;
  WholeConfig whole = whole_config(first.path, &*manifest.slicing, options);
  model.config = std::move(whole.config);
  model.config_text = std::move(whole.text);
  model.dialect = formats::find_dialect(manifest.dialect);
  model.description = read_description(first.path, model.dialect);
  formats::SideListing beside = formats::list_side_files(first.path, faults);
  faults.throw_if_any();
  model.side_files = std::move(beside.files);
  model.remarks = formats::left_out_remarks(beside.left_out);
  model.stored = std::move(joined.stored);
  model.index_frame = formats::read_index_frame(first.path);
  model.bytes = std::make_unique<JoinedBytes>(std::move(joined.slices), compare_replicas);
  return model;
}

}  // namespace ingot::shard
