#include "shard/join/source.h"

#include <optional>

#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "formats/records/layout.h"
#include "formats/records/manifest.h"
#include "shard/join/deepseek_shards.h"
#include "shard/join/rank_directories.h"
#include "shard/join/state_ranks.h"

namespace ingot::shard {

using formats::Checkpoint;
using formats::Manifest;

namespace fs = std::filesystem;

namespace {

enum class SourceKind : std::uint8_t { kWhole, kRanks, kDeepseekShards, kStateRanks };

// The manifest says the kind; without one, file names do.
SourceKind kind_of(const fs::path& directory, const Manifest* manifest) {
  if (manifest != nullptr) {
    const formats::Layout* layout = formats::find_layout(manifest->layout);
    if (layout != nullptr && layout->id == formats::LayoutId::kShardedState)
      return SourceKind::kStateRanks;
    if (layout != nullptr && layout->has_shards()) return SourceKind::kDeepseekShards;
    const bool has_ranks = manifest->slicing && !manifest->slicing->ranks.empty();
    return has_ranks ? SourceKind::kRanks : SourceKind::kWhole;
  }
  if (!rank_directories_in(directory).empty()) return SourceKind::kRanks;
  return holds_deepseek_shards(directory) ? SourceKind::kDeepseekShards : SourceKind::kWhole;
}

}  // namespace

Checkpoint open_source(const fs::path& given, const SourceOptions& options) {
  if (options.may_be_file && formats::is_weights_file(given))
    return formats::open_weights_file(given, options.config, options.open);
  const fs::path directory = formats::checkpoint_directory(given);
  formats::require_finished_directory(directory);
  const std::optional<Manifest> manifest = formats::read_manifest(directory);
  const Manifest* known = manifest ? &*manifest : nullptr;
  const SourceKind kind = kind_of(directory, known);
  if (kind != SourceKind::kDeepseekShards && !options.config.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "--config is for model{i}-mp{N}.safetensors that have no config.json; this "
                "checkpoint has its own")
        .in_file(directory.string());
  }
  if (kind == SourceKind::kWhole) return Checkpoint::open(directory, options.open);

  formats::OpenOptions open = options.open;
  if (kind == SourceKind::kDeepseekShards) {
    // A source that was converted under a given family is read under it again.
    if (open.family.empty())
      open.family = formats::family_spec_of(directory, known != nullptr ? known->family : "");
    return Checkpoint::assemble(
        join_deepseek_shards(directory, known, options.config, options.compare_replicas, open),
        open);
  }
  if (kind == SourceKind::kStateRanks) {
    if (open.family.empty()) open.family = formats::family_spec_of(directory, known->family);
    return Checkpoint::assemble(join_state_ranks(directory, *known, options.compare_replicas, open),
                                open);
  }
  std::vector<RankDirectory> ranks = find_ranks(directory, known, open.threads);
  if (open.family.empty())
    open.family = formats::family_spec_of(ranks[0].path, ranks[0].manifest.family);
  return Checkpoint::assemble(join_ranks(std::move(ranks), options.compare_replicas, open), open);
}

void require_all_ranks(const Checkpoint& source) {
  const formats::SlicingRecord* slicing = source.slicing();
  if (slicing == nullptr) return;
  throw Error(ErrorCode::kUnsupported,
              "holds only the slices of rank {} (give the directory above, with all {} ranks)",
              slicing->rank->rank, slicing->n_ranks)
      .in_file(source.directory().string());
}

bool is_sliced(const fs::path& given) {
  std::error_code failure;
  if (!fs::is_directory(given, failure)) return false;
  const fs::path directory = formats::checkpoint_directory(given);
  std::optional<Manifest> manifest;
  try {
    manifest = formats::read_manifest(directory);
  } catch (const Error&) {
    // Opening reports the fault; until then the names tell.
  }
  return kind_of(directory, manifest ? &*manifest : nullptr) != SourceKind::kWhole;
}

}  // namespace ingot::shard
