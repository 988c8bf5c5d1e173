#include "shard/join/deepseek_shards.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/checked.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/family/families.h"
#include "formats/records/native_names.h"
#include "shard/cut/topology.h"
#include "shard/join/joined_model.h"
#include "shard/join/slice_files.h"
#include "shard/join/slice_join.h"

namespace ingot::shard {

using formats::Manifest;
using formats::ModelConfig;
using formats::StoredTensor;

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kScaleSuffix = "_scale_inv";

std::string shard_name(std::uint32_t shard, std::uint32_t n_shards) {
  return fmt::format("model{}-mp{}.safetensors", shard, n_shards);
}

std::optional<RankNumber> parse_shard_name(std::string_view name) {
  return parse_rank_name(name, shard_name);
}

// How many shards the names tell of; kNotFound when some are not here.
std::uint32_t count_shards(const fs::path& directory, const Manifest* manifest) {
  std::vector<RankNumber> found;
  for (const std::string& name : formats::list_file_names(directory)) {
    if (const auto parsed = parse_shard_name(name)) found.push_back(*parsed);
  }
  const std::uint32_t n = manifest != nullptr && manifest->slicing ? manifest->slicing->n_ranks
                          : found.empty()                          ? 0
                                                                   : found[0].n_ranks;
  if (n == 0) {
    throw Error(ErrorCode::kNotFound, "holds no model{i}-mp{N}.safetensors")
        .in_file(directory.string());
  }
  if (n > kMaxRanks) {
    throw Error(ErrorCode::kLimit, "is of more than {} shards", kMaxRanks)
        .in_file(directory.string());
  }
  ErrorList faults;
  std::vector<bool> is_here(n, false);
  for (const RankNumber& name : found) {
    if (name.n_ranks == n) {
      is_here[name.rank] = true;
      continue;
    }
    faults.add(Error(ErrorCode::kMismatch,
                     "is a shard of {}, the others are of {} (move those of one of the two away)",
                     name.n_ranks, n)
                   .in_file((directory / shard_name(name.rank, name.n_ranks)).string()));
  }
  for (std::uint32_t i = 0; i < n; ++i) {
    if (is_here[i]) continue;
    faults.add(
        Error(ErrorCode::kNotFound, "is missing, one of {} shards (put it next to the others)", n)
            .in_file((directory / shard_name(i, n)).string()));
  }
  faults.throw_if_any();
  return n;
}

// The config of the hub; that of DeepSeek's inference code has other keys and says too little.
WholeConfig hub_config(const fs::path& directory, const Manifest* manifest, const fs::path& given,
                       const formats::OpenOptions& options) {
  if (!given.empty()) return read_whole_config(given);
  const formats::SlicingRecord* slicing =
      manifest != nullptr && manifest->slicing ? &*manifest->slicing : nullptr;
  WholeConfig whole;
  try {
    whole = whole_config(directory, slicing, options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
  }
  if (!whole.config.model_type.empty()) return whole;
  throw Error(ErrorCode::kNotFound,
              "holds no config.json of the hub, without which its tensors have no names (give that "
              "of the original model with --config)")
      .in_file(directory.string());
}

const formats::Family& family_for(const ModelConfig& config, const std::string& asked) {
  const formats::Family* family =
      asked.empty() ? formats::family_of(config) : formats::find_family(asked);
  // Opening the checkpoint reports the fault in more detail.
  return family != nullptr ? *family : *formats::find_family("generic");
}

// An unknown name is kept, so that it is reported, or allowed, as the file has it.
std::string whole_name(const std::string& native, const ModelConfig& config) {
  return formats::hub_name(native, config).value_or(native);
}

// Shards that others made: how a tensor was cut follows from its name.
class ForeignShards {
 public:
  ForeignShards(const formats::Family& family, const ModelConfig& config, std::uint32_t n_shards)
      : config_(config),
        grammar_(family, config),
        block_(formats::fp8_block_size(config)),
        n_shards_(n_shards) {}

  [[nodiscard]] std::vector<FoundSlice> slices_of(SliceJoin& join, std::uint32_t shard,
                                                  const std::vector<StoredTensor>& stored,
                                                  ErrorList& faults) const {
    std::vector<FoundSlice> found;
    found.reserve(stored.size());
    for (const StoredTensor& tensor : stored) {
      try {
        std::string name = whole_name(tensor.name, config_);
        const auto record = record_of(name, shard, tensor);
        found.push_back({.name = std::move(name),
                         .kind = join.kind(
                             place_slice(tensor.dtype, tensor.shape, record ? &*record : nullptr)),
                         .file = shard,
                         .offset = tensor.offset,
                         .home_file = {}});
      } catch (Error& error) {
        faults.add(error.in_file(shard_name(shard, n_shards_)).in_tensor(tensor.name));
      }
    }
    return found;
  }

 private:
  // Nullopt for a tensor that its shard holds whole.
  [[nodiscard]] std::optional<formats::SliceRecord> record_of(const std::string& name,
                                                              std::uint32_t shard,
                                                              const StoredTensor& tensor) const {
    if (n_shards_ == 1) return std::nullopt;
    const bool is_scale = name.ends_with(kScaleSuffix);
    const auto match = grammar_.match(
        is_scale ? std::string_view(name).substr(0, name.size() - kScaleSuffix.size()) : name);
    if (!match || match->expert || match->rule->cut == formats::Cut::kReplicated)
      return std::nullopt;
    const std::size_t axis = match->rule->cut == formats::Cut::kRow ? 1 : 0;
    if (axis >= tensor.shape.size()) return std::nullopt;
    formats::SliceRecord record;
    record.axis = static_cast<int>(axis);
    record.whole = tensor.shape;
    const auto whole = checked_mul(tensor.shape[axis], n_shards_);
    if (!whole) throw Error(ErrorCode::kLimit, "its size overflows 64 bits");
    record.whole[axis] = *whole;
    record.offset = shard * tensor.shape[axis];
    if (tensor.dtype == formats::DType::kF8E4M3) require_whole_blocks(tensor, axis);
    return record;
  }

  // Scales are cut by their own number, so inside a block it is unknown which scale a code has.
  void require_whole_blocks(const StoredTensor& tensor, std::size_t axis) const {
    if (block_[axis] == 0 || tensor.shape[axis] % block_[axis] == 0) return;
    throw Error(ErrorCode::kUnsupported,
                "was cut into {} {} per shard, its scales by blocks of {}: which scale a {} has is "
                "lost (convert the original again)",
                tensor.shape[axis], axis == 0 ? "rows" : "columns", block_[axis],
                axis == 0 ? "row" : "column");
  }

  const ModelConfig& config_;
  formats::NameGrammar grammar_;
  std::array<std::uint64_t, 2> block_;
  std::uint32_t n_shards_;
};

// Every file as its own holder; sizes are known only from our manifest.
void add_shards(SliceJoin& join, const fs::path& directory, const Manifest* manifest,
                std::uint32_t n_shards) {
  ErrorList faults;
  for (std::uint32_t i = 0; i < n_shards; ++i) {
    const std::string name = shard_name(i, n_shards);
    try {
      std::optional<std::uint64_t> n_bytes;
      if (manifest != nullptr) {
        for (const formats::ManifestFile& file : manifest->files) {
          if (file.name == name) n_bytes = file.n_bytes;
        }
        if (!n_bytes) {
          throw Error(ErrorCode::kMismatch, "is not named by {} (move the file away)",
                      formats::kManifestName);
        }
      }
      if (!join.add_file(directory / name, name, n_bytes, i).second) {
        throw Error(ErrorCode::kDuplicate, "is the same file as another shard (fetch it again)");
      }
    } catch (Error& error) {
      faults.add(error.in_file((directory / name).string()));
    }
  }
  faults.throw_if_any();
}

}  // namespace

bool holds_deepseek_shards(const fs::path& directory) {
  const std::vector<std::string> names = formats::list_file_names(directory);
  return std::any_of(names.begin(), names.end(),
                     [](const std::string& name) { return parse_shard_name(name).has_value(); });
}

formats::Draft join_deepseek_shards(const fs::path& directory, const Manifest* manifest,
                                    const fs::path& config, bool compare_replicas,
                                    const formats::OpenOptions& options) {
  const std::uint32_t n_shards = count_shards(directory, manifest);
  WholeConfig whole = hub_config(directory, manifest, config, options);
  SliceJoin join;
  add_shards(join, directory, manifest, n_shards);
  ErrorList faults;
  if (manifest != nullptr) {
    std::vector<SliceFile> files;
    for (std::uint32_t i = 0; i < n_shards; ++i)
      files.push_back({.index = i, .name = shard_name(i, n_shards)});
    add_recorded(
        join, files, directory, manifest->records_hash,
        [&](const std::string& name) { return whole_name(name, whole.config); }, faults);
  } else {
    const ForeignShards shards(family_for(whole.config, options.family), whole.config, n_shards);
    collect_parallel(n_shards, std::max<std::size_t>(options.threads, 1), faults,
                     [&](std::size_t i, ErrorList& of_shard) {
                       const auto shard = static_cast<std::uint32_t>(i);
                       join.add(shards.slices_of(join, shard, read_stored(join, shard), of_shard));
                     });
  }
  faults.throw_if_any();
  formats::Draft model = joined_model(directory, std::move(whole),
                                      &formats::default_dialect(formats::SchemeId::kFp8Block),
                                      join.finish(), compare_replicas);
  model.cuts_are_known = manifest != nullptr || n_shards == 1;
  if (manifest != nullptr && !manifest->index.empty()) {
    model.index.frame = formats::parse_checkpoint_index(
                            manifest->index, (directory / formats::kManifestName).string())
                            .frame;
  }
  return model;
}

}  // namespace ingot::shard
