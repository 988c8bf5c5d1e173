#include "shard/join/rank_directories.h"

#include <algorithm>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/safetensors.h"
#include "shard/cut/topology.h"
#include "shard/join/joined_model.h"
#include "shard/join/slice_files.h"

namespace ingot::shard {

using formats::kManifestName;
using formats::Manifest;
using formats::SlicingRecord;

namespace fs = std::filesystem;

namespace {

constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;

std::optional<RankNumber> parse_directory_name(std::string_view name) {
  return parse_rank_name(name, rank_directory_name);
}

// The ranks of directories that a user gathered.
std::vector<std::string> gathered_ranks(const fs::path& directory) {
  std::vector<RankNumber> found;
  for (const std::string& name : rank_directories_in(directory))
    found.push_back(parse_directory_name(name).value());
  INGOT_CHECK(!found.empty());
  for (const RankNumber& name : found) {
    if (name.n_ranks == found[0].n_ranks) continue;
    throw Error(ErrorCode::kMismatch,
                "holds ranks of {} and of {} (move those of one of the two away)", found[0].n_ranks,
                name.n_ranks)
        .in_file(directory.string());
  }
  if (found[0].n_ranks > kMaxRanks) {
    throw Error(ErrorCode::kLimit, "is of more than {} ranks", kMaxRanks)
        .in_file(directory.string());
  }
  std::vector<std::string> names;
  for (std::uint32_t rank = 0; rank < found[0].n_ranks; ++rank)
    names.push_back(rank_directory_name(rank, found[0].n_ranks));
  return names;
}

void require_present(const fs::path& directory, const std::vector<std::string>& names) {
  ErrorList faults;
  for (const std::string& name : names) {
    std::error_code failure;
    if (fs::is_directory(directory / name, failure)) continue;
    faults.add(Error(ErrorCode::kNotFound,
                     "is missing, one of {} ranks (put its directory next to the others)",
                     names.size())
                   .in_file((directory / name).string()));
  }
  faults.throw_if_any();
}

// Reads the manifest; with `listed`, only if it is the one that the top manifest knows.
Manifest read_rank_manifest(const fs::path& rank, const formats::RankEntry* listed) {
  formats::require_finished_directory(rank);
  const fs::path path = rank / kManifestName;
  const std::string text = read_text_file(path, kMaxManifestBytes);
  if (listed != nullptr) {
    TensorHasher hasher;
    hasher.update(std::as_bytes(std::span(text)));
    if (const Hash128 hash = hasher.finish(); hash != listed->manifest_hash) {
      throw Error(ErrorCode::kMismatch,
                  "was changed or belongs to another run: its hash is {}, {} of the directory "
                  "above says {} (fetch the directories of one conversion)",
                  hash.hex(), kManifestName, listed->manifest_hash.hex())
          .in_file(path.string());
    }
  }
  Manifest manifest = formats::parse_manifest(text, path.string());
  if (!manifest.slicing || !manifest.slicing->rank) {
    throw Error(ErrorCode::kMismatch, "is not the manifest of a rank (move the directory away)")
        .in_file(path.string());
  }
  return manifest;
}

std::string topology_text(const SlicingRecord& slicing) {
  return fmt::format("tp {}, ep {}, etp {}, pp {}", slicing.tp, slicing.ep, slicing.etp,
                     slicing.pp);
}

// Checks that a rank is in its place. Parsing has checked that the manifest's own numbers fit its
// topology.
void check_place(const RankDirectory& rank, std::uint32_t number, ErrorList& faults) {
  if (rank.manifest.slicing->rank->rank == number) return;
  faults.add(Error(ErrorCode::kMismatch,
                   "is of rank {}, in the place of rank {} (give the directory its own name back)",
                   rank.manifest.slicing->rank->rank, number)
                 .in_file((rank.path / kManifestName).string()));
}

// A rank against the top manifest, or against the first rank.
void check_same_conversion(const RankDirectory& rank, const Manifest& with,
                           std::string_view with_name, ErrorList& faults) {
  const Manifest& manifest = rank.manifest;
  const SlicingRecord& a = *manifest.slicing;
  const SlicingRecord& b = *with.slicing;
  const auto fault = [&](std::string message) {
    faults.add(Error(ErrorCode::kMismatch, std::move(message))
                   .in_file((rank.path / kManifestName).string()));
  };
  if (a.job != b.job) {
    return fault(
        fmt::format("belongs to another conversion than {} (fetch the directories of one "
                    "conversion)",
                    with_name));
  }
  if (std::tie(a.tp, a.ep, a.etp, a.pp, a.n_ranks) !=
      std::tie(b.tp, b.ep, b.etp, b.pp, b.n_ranks)) {
    return fault(
        fmt::format("says {}, {} ranks; {} says {}, {} ranks (changed since it was written)",
                    topology_text(a), a.n_ranks, with_name, topology_text(b), b.n_ranks));
  }
  if (manifest.family != with.family || manifest.dialect != with.dialect) {
    fault(
        fmt::format("is of family {} in dialect {}; {} is of {} in {} (changed since it was "
                    "written)",
                    manifest.family, manifest.dialect, with_name, with.family, with.dialect));
  }
}

// So many directories are read at a time: each takes tens of megabytes until it is joined.
constexpr std::size_t kMaxAtOnce = 8;

// Weights that the manifest does not know would be left out in silence.
void refuse_unlisted_files(const RankDirectory& rank, ErrorList& faults) {
  std::set<std::string_view> known;
  for (const formats::ManifestFile& file : rank.manifest.files) known.insert(file.name);
  for (const std::string& name : formats::list_file_names(rank.path)) {
    if (!name.ends_with(formats::kWeightsSuffix) || known.contains(name)) continue;
    faults.add(Error(ErrorCode::kMismatch, "is not named by {} (move the file away)",
                     formats::kManifestName)
                   .in_file((rank.path / name).string()));
  }
}

}  // namespace

std::vector<std::string> rank_directories_in(const fs::path& directory) {
  std::vector<std::string> names = formats::list_file_names(directory);
  std::erase_if(names, [&](const std::string& name) {
    std::error_code failure;
    return !parse_directory_name(name) || !fs::is_directory(directory / name, failure);
  });
  return names;
}

std::vector<RankDirectory> find_ranks(const fs::path& directory, const Manifest* top,
                                      std::size_t threads) {
  std::vector<std::string> names;
  if (top != nullptr) {
    for (const formats::RankEntry& entry : top->slicing->ranks) names.push_back(entry.directory);
  } else {
    names = gathered_ranks(directory);
  }
  require_present(directory, names);

  std::vector<RankDirectory> ranks(names.size());
  ErrorList faults;
  collect_parallel(names.size(), threads, faults, [&](std::size_t i, ErrorList&) {
    ranks[i].name = names[i];
    ranks[i].path = directory / names[i];
    ranks[i].manifest =
        read_rank_manifest(ranks[i].path, top != nullptr ? &top->slicing->ranks[i] : nullptr);
  });
  faults.throw_if_any();
  for (std::uint32_t i = 0; i < ranks.size(); ++i) {
    check_same_conversion(ranks[i], top != nullptr ? *top : ranks[0].manifest,
                          top != nullptr ? "the manifest above it" : ranks[0].name, faults);
    check_place(ranks[i], i, faults);
  }
  faults.throw_if_any();
  return ranks;
}

formats::Draft join_ranks(std::vector<RankDirectory> ranks, bool compare_replicas,
                          const formats::OpenOptions& options) {
  ErrorList faults;
  SliceJoin join;
  std::vector<std::vector<SliceFile>> own(ranks.size());
  for (std::uint32_t i = 0; i < ranks.size(); ++i) {
    refuse_unlisted_files(ranks[i], faults);
    for (const formats::ManifestFile& file : ranks[i].manifest.files) {
      try {
        const auto [index, is_new] =
            join.add_file(ranks[i].path / file.name, fmt::format("{}/{}", ranks[i].name, file.name),
                          file.n_bytes, i);
        if (is_new) own[i].push_back({.index = index, .name = file.name});
      } catch (const Error& error) {
        faults.add(error);
      }
    }
  }
  faults.throw_if_any();
  collect_parallel(ranks.size(), std::clamp<std::size_t>(options.threads, 1, kMaxAtOnce), faults,
                   [&](std::size_t i, ErrorList& of_rank) {
                     add_recorded(
                         join, own[i], ranks[i].path, ranks[i].manifest.records_hash,
                         [](const std::string& name) { return name; }, of_rank);
                   });
  faults.throw_if_any();
  JoinedModel joined = join.finish();

  const RankDirectory& first = ranks[0];
  formats::Draft model = joined_model(
      first.path, whole_config(first.path, &*first.manifest.slicing, options),
      formats::find_dialect(first.manifest.dialect), std::move(joined), compare_replicas);
  model.index.frame = formats::read_index_frame(first.path);
  return model;
}

}  // namespace ingot::shard
