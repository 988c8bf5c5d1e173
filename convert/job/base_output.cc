#include "convert/job/base_output.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "convert/job/resume.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/config/model_config.h"
#include "formats/files/folder.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "shard/cut/topology.h"
#include "shard/join/source.h"

namespace ingot::convert {

namespace fs = std::filesystem;
using formats::Json;
using formats::StoredTensor;
using formats::TensorHash;
using formats::TensorRecord;

namespace {

constexpr std::size_t kTakePiece = std::size_t{1} << 20;

// The choices that decide a tensor's bytes: not in which file it lies, nor what was let pass.
Json choices_of(Json recipe) {
  for (const char* key : {"shards", "align", "files", "order", "links", "allow"}) recipe.erase(key);
  if (const auto slicing = recipe.find("slicing"); slicing != recipe.end() && slicing->is_object())
    slicing->erase("links");
  return recipe;
}

// True if two records are of the same bytes, maybe in other files, and maybe with other contents.
bool is_same_part(const TensorHash& a, const TensorHash& b) {
  const auto piece_of = [](const TensorHash& part) {
    return part.piece ? std::tuple(part.piece->of, part.piece->offset, part.piece->is_turned)
                      : std::tuple(std::string(), std::uint64_t{0}, false);
  };
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape && a.slice == b.slice &&
         piece_of(a) == piece_of(b);
}

bool have_same_parts(std::span<const TensorHash> a, std::span<const TensorHash> b) {
  return std::ranges::equal(a, b, is_same_part);
}

bool have_same_bytes(std::span<const TensorHash> a, std::span<const TensorHash> b) {
  return std::ranges::equal(a, b, {}, &TensorHash::hash, &TensorHash::hash);
}

// A slice that the plan has in one member of a file.
struct Slot {
  PartRef at;
  std::uint32_t member = 0;  // among those of its file
};

/// The weights files of a directory with records of its own: a base, or one rank of it.
class BaseFiles {
 public:
  /// `is_by_file`: a name may be in several files, each of a rank.
  BaseFiles(const fs::path& directory, const formats::Manifest& manifest, bool is_by_file,
            std::size_t threads)
      : is_by_file_(is_by_file) {
    std::vector<std::string> names;
    for (const formats::ManifestFile& file : manifest.files) names.push_back(file.name);
    std::ranges::sort(names);
    std::vector<formats::WeightsFile> files = formats::locate_files(names, directory, {});
    ErrorList faults;
    stored_ = formats::read_headers(files, threads, faults);
    faults.throw_if_any();
    files_.emplace(std::move(files));
    for (std::uint32_t i = 0; i < stored_.size(); ++i)
      index_.emplace(std::pair(is_by_file ? stored_[i].file : 0, std::string_view(stored_[i].name)),
                     i);
  }

  [[nodiscard]] const formats::CheckpointFiles& bytes() const { return *files_; }
  [[nodiscard]] std::span<const StoredTensor> stored() const { return stored_; }

  struct Found {
    std::uint32_t file = 0;
    std::uint64_t offset = 0;
  };
  /// The place that the bytes of a slice have here; nullopt without a stored tensor like the one in
  /// the plan.
  [[nodiscard]] std::optional<Found> find(const Plan& plan, const Slot& slot,
                                          const PlannedSlice& slice) const {
    const PlannedTensor& planned = plan.tensors[slot.at.tensor];
    const PlannedPlace& place = plan.places[slice.place];
    const PlannedFile& file = plan.files[place.file];
    const bool is_joined = place.joined != PlannedPlace::kOwn;
    const PlannedFile::Joined* joined = is_joined ? &file.joined[place.joined] : nullptr;
    std::uint32_t number = 0;
    if (is_by_file_) {
      const std::string& wanted = file.members[slot.member].path;
      const auto files = files_->files();
      const auto at = std::ranges::find(files, wanted, &formats::SourceFile::name);
      if (at == files.end()) return std::nullopt;
      number = static_cast<std::uint32_t>(at - files.begin());
    }
    const std::string name = is_joined ? joined->spec.name : plan.part_name(planned, slot.at.part);
    const auto found = index_.find(std::pair(number, std::string_view(name)));
    if (found == index_.end()) return std::nullopt;
    const StoredTensor& stored = stored_[found->second];
    const bool is_like =
        is_joined ? stored.dtype == joined->spec.dtype && stored.shape == joined->spec.shape
                  : stored.n_bytes == slice.n_bytes;
    if (!is_like) return std::nullopt;
    return Found{stored.file, stored.offset + (is_joined ? slice.offset - joined->offset : 0)};
  }

  /// Gives the pieces of a slice, in the order of the whole, to take(offset, bytes); returns the
  /// hash of all.
  template <typename Take>
  Hash128 read(const Found& at, const PlannedSlice& slice, const Take& take) const {
    const auto read_at = [&](std::uint32_t /*piece*/, std::uint64_t offset,
                             std::span<std::byte> out) {
      files_->read_file(at.file, at.offset + offset, out);
    };
    TensorHasher hasher;
    // A larger piece has longer runs of columns.
    const std::size_t most = slice.turned.is_turned() ? 4 * kTakePiece : kTakePiece;
    std::vector<std::byte> buffer(
        static_cast<std::size_t>(std::min<std::uint64_t>(most, slice.n_bytes)));
    for (std::uint64_t done = 0; done < slice.n_bytes; done += buffer.size()) {
      StopScope::check();
      const auto piece = std::span(buffer).first(
          static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), slice.n_bytes - done)));
      slice.turned.is_turned() ? slice.turned.nest().gather(done, piece, read_at)
                               : read_at(0, done, piece);
      hasher.update(piece);
      take(done, std::span<const std::byte>(piece));
    }
    return hasher.finish();
  }

 private:
  bool is_by_file_;
  std::vector<StoredTensor> stored_;
  std::optional<formats::CheckpointFiles> files_;
  // By file, where names are, and name, which is that of `stored_`.
  std::map<std::pair<std::uint32_t, std::string_view>, std::uint32_t> index_;
};

class BaseReader {
 public:
  BaseReader(const BasePlace& place, const TakeOver& run)
      : place_(place), run_(run), plan_(run.plan) {
    require_base(place);
    manifest_ = *formats::read_manifest(place.output);
    found_.whole_files.assign(plan_.files.size(), 0);
    candidates_.assign(plan_.tensors.size(), nullptr);
  }

  TakenOver take() {
    if (const std::string reason = obstacle(); !reason.empty()) return take_nothing(reason);
    if (has_records(place_.output)) {
      read_records();
      if (!place_.source.empty()) require_source();
    } else if (const std::string reason = make_records(); !reason.empty()) {
      return take_nothing(reason);
    }
    match();
    hash_sources();
    learn_outputs();
    link_whole_files();
    copy_others();
    for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i] == nullptr) continue;
      const PlannedTensor& planned = plan_.tensors[i];
      for (std::size_t p = 0; p < planned.n_parts; ++p) found_.n_bytes += planned.parts[p].n_bytes;
      found_.tensors.push_back(i);
      run_.done[i] = 1;
    }
    if (n_damaged_ > 0) {
      found_.remarks.push_back(
          fmt::format("{} tensors of {} are not what its records say, and are made again",
                      n_damaged_.load(), place_.output.string()));
    }
    return std::move(found_);
  }

 private:
  TakenOver take_nothing(const std::string& reason) {
    found_.remarks.push_back(
        fmt::format("nothing is taken over from {}: {}", place_.output.string(), reason));
    return std::move(found_);
  }

  // Why no tensor can be taken over; empty where some may be.
  [[nodiscard]] std::string obstacle() const {
    if (plan_.is_sliced() != manifest_.slicing.has_value() ||
        manifest_.layout != plan_.options.layout->name)
      return fmt::format("it is of layout {}, and this is {}", manifest_.layout,
                         plan_.options.layout->name);
    if (manifest_.tool_version != kVersion)
      return fmt::format("version {} of ingot made it, and this is {}", manifest_.tool_version,
                         std::string_view(kVersion));
    if (manifest_.family != plan_.source.family().name ||
        manifest_.dialect != plan_.target.dialect->name)
      return "it is of another family or dialect";
    Json recipe = run_.identity.at("recipe");
    for (const char* key : kOwnKeys) {
      if (run_.identity.contains(key)) recipe[key] = run_.identity.at(key);
    }
    if (choices_of(manifest_.recipe) != choices_of(std::move(recipe)))
      return "it was made by another recipe, other statistics, or for other ranks";
    if (!(manifest_.source_quantization == *plan_.source_facts.quantization))
      return "its source was quantized in another way";
    return {};
  }

  static bool has_records(const fs::path& directory) {
    return stamp_of(directory / formats::kRecordsName).has_value();
  }

  void read_records() {
    for (TensorRecord& record : formats::read_tensor_records(place_.output / formats::kRecordsName,
                                                             manifest_.records_hash)) {
      // Outputs are looked up where a directory of weights has them.
      record.output.clear();
      records_.emplace(record.name, std::move(record));
    }
  }

  // The hashes of the stored tensors of the base's source, by name.
  std::map<std::string, Hash128, std::less<>> hash_source(const formats::Checkpoint& old) const {
    std::map<std::string, Hash128, std::less<>> hashes;
    const auto hashed = check::hash_stored({old.stored(), old.bytes()}, run_.threads);
    for (std::size_t i = 0; i < hashed.size(); ++i) {
      if (hashed[i].failure) throw *hashed[i].failure;
      if (hashed[i].hash) hashes.emplace(old.stored()[i].name, *hashed[i].hash);
    }
    return hashes;
  }
  [[nodiscard]] formats::Checkpoint open_source() const {
    return shard::open_source(
        place_.source,
        {.open = {.family = std::string(plan_.source.family().name), .threads = run_.threads}});
  }

  // Makes up for records that are not there: a plan depends on config and headers only, so where
  // both sources have the same, the base has the tensors of this plan. Returns why that cannot be
  // said, or an empty text.
  std::string make_records() {
    is_made_up_ = true;
    const formats::Checkpoint old = open_source();
    const formats::Checkpoint& now = plan_.source;
    std::map<std::string_view, const StoredTensor*> before;
    for (const StoredTensor& tensor : old.stored()) before.emplace(tensor.name, &tensor);
    const bool has_same_headers =
        old.stored().size() == now.stored().size() &&
        std::ranges::all_of(now.stored(), [&](const StoredTensor& tensor) {
          const auto at = before.find(tensor.name);
          return at != before.end() && at->second->dtype == tensor.dtype &&
                 at->second->shape == tensor.shape;
        });
    if (!has_same_headers || config_in(old.directory()) != config_in(now.directory()))
      return fmt::format("it has no {}, and its source has other tensors, or another config.json",
                         formats::kRecordsName);
    const auto hashes = hash_source(old);
    for (const PlannedTensor& planned : plan_.tensors) {
      TensorResult result;
      for (const std::uint32_t index : plan_.stored_of(planned)) {
        const auto at = hashes.find(now.stored()[index].name);
        if (at != hashes.end()) result.source.push_back(at->second);
      }
      // Facts that only the run knew are in the records of these.
      const bool is_open = planned.carries_errors || planned.action == Action::kRewrap;
      if (is_open || result.source.size() != plan_.stored_of(planned).size()) continue;
      TensorRecord record = record_of(plan_, planned, result);
      record.source = source_hashes(plan_, planned, result);
      records_.emplace(record.name, std::move(record));
    }
    found_.remarks.push_back(
        fmt::format("{} has no {}: its tensors are known by its source and by the hashes of its "
                    "files, and the records of those that are taken over tell no errors",
                    place_.output.string(), formats::kRecordsName));
    return {};
  }
  static Json config_in(const fs::path& directory) {
    const auto text = formats::read_config(directory, /*may_be_missing=*/true);
    return text ? formats::parse_json(*text, formats::kConfigName) : Json();
  }

  // Finds the record of each tensor that this run would write in the same way.
  void match() {
    std::set<std::string_view> here;
    for (const PlannedTensor& planned : plan_.tensors) here.insert(plan_.tensor_of(planned).name);
    for (const auto& [name, record] : records_) {
      if (!here.contains(name)) lost_layers_.insert(record.layer);
    }
    for (std::uint32_t i = 0; i < plan_.tensors.size(); ++i) {
      const PlannedTensor& planned = plan_.tensors[i];
      // Changed values (--lora, edits) have further sources.
      if (planned.n_parts == 0 || run_.done[i] != 0 || !plan_.is_here(planned) ||
          planned.is_changed)
        continue;
      const auto found = records_.find(plan_.tensor_of(planned).name);
      if (found == records_.end()) continue;
      const TensorRecord& record = found->second;
      // The record of the same tensor with hashes that are not known yet.
      TensorResult unknown;
      unknown.source.resize(plan_.stored_of(planned).size());
      const TensorRecord made = record_of(plan_, planned, unknown);
      const bool is_exact = planned.action == Action::kCopy || planned.action == Action::kRewrap;
      if (made.role == record.role && made.layer == record.layer && made.expert == record.expert &&
          made.action == record.action && made.from == record.from && made.to == record.to &&
          made.giver == record.giver && !record.change &&
          have_same_parts(source_hashes(plan_, planned, unknown), record.source) &&
          !record.source.empty() && (is_exact || !run_.lossless_only))
        candidates_[i] = &record;
    }
    drop_broken_sets();
  }

  // Tensors that are quantized together are taken over together, and not where tensors of their
  // layer are gone, which may have been in the set.
  void drop_broken_sets() {
    for (const std::vector<std::uint32_t>& set : plan_.fused_sets) {
      const bool is_whole = std::ranges::all_of(set, [&](std::uint32_t i) {
        return candidates_[i] != nullptr && !lost_layers_.contains(candidates_[i]->layer);
      });
      if (is_whole) continue;
      for (const std::uint32_t i : set) candidates_[i] = nullptr;
    }
  }

  // Calls test(i) for each candidate on all threads; those of which it is false are none any more.
  template <typename Test>
  void keep_if(const Test& test) {
    std::vector<std::uint32_t> all;
    for (std::uint32_t i = 0; i < candidates_.size(); ++i) {
      if (candidates_[i] != nullptr) all.push_back(i);
    }
    std::vector<char> is_kept(candidates_.size(), 1);
    parallel_for(all.size(), run_.threads,
                 [&](std::size_t n) { is_kept[all[n]] = test(all[n]) ? 1 : 0; });
    for (const std::uint32_t i : all) {
      if (is_kept[i] == 0) candidates_[i] = nullptr;
    }
    drop_broken_sets();
  }

  void require_source() {
    const formats::Checkpoint old = open_source();
    const auto hashes = hash_source(old);
    for (const auto& [name, record] : records_) {
      for (const TensorHash& part : record.source) {
        const auto at = hashes.find(part.name);
        if (at == hashes.end() || at->second == part.hash) continue;
        throw Error(
            ErrorCode::kMismatch,
            "is not the tensor from which {} was made (is it another version of the source?)",
            place_.output.string())
            .in_file(place_.source.string())
            .in_tensor(part.name);
      }
    }
  }

  void hash_sources() {
    keep_if([&](std::uint32_t i) {
      const PlannedTensor& planned = plan_.tensors[i];
      TensorResult& result = run_.results[i];
      result = {};
      for (const std::uint32_t index : plan_.stored_of(planned)) {
        const StoredTensor& stored = plan_.source.stored()[index];
        if (!plan_.source.has_data(stored.file)) return false;
        result.source.push_back(
            check::hash_range(stored.n_bytes, [&](std::uint64_t offset, std::span<std::byte> out) {
              plan_.source.read(index, offset, out);
            }));
      }
      const TensorRecord& record = *candidates_[i];
      if (!have_same_bytes(source_hashes(plan_, planned, result), record.source)) return false;
      // Hashes of zero are those that are not known yet.
      for (std::size_t p = 0; p < planned.n_parts; ++p)
        result.output.emplace_back(n_hashes(planned, p));
      result.recorded_error = record.error;
      result.original_global = record.original_global;
      result.carries_errors = record.carries_errors;
      return true;
    });
  }

  [[nodiscard]] std::size_t n_hashes(const PlannedTensor& planned, std::size_t part) const {
    if (!plan_.is_sliced()) return 1;
    std::size_t n = 0;
    for (const PlannedPlace& place : plan_.places_of(planned.parts[part]))
      n = std::max<std::size_t>(
          n, place.first_hash + plan_.part_cut(planned, part, place.ep_rank).n_distinct());
    return n;
  }

  /// A directory of the base with records of its own.
  struct Holder {
    fs::path directory;
    formats::Manifest manifest;
    /// Slices of candidates in its files, by tensor.
    std::vector<std::vector<Slot>> slots;
  };

  // Calls visit(holder) for the base, or for each directory of a rank. Files that several ranks
  // load belong to the first of them.
  template <typename Visit>
  void for_each_holder(const Visit& visit) {
    const std::uint32_t n_ranks =
        plan_.has_rank_directories() ? plan_.slicing->topology.n_ranks() : 1;
    std::vector<std::vector<std::pair<std::uint32_t, std::uint32_t>>> members(n_ranks);
    for (std::uint32_t f = 0; f < plan_.files.size(); ++f) {
      for (std::uint32_t m = 0; m < plan_.files[f].members.size(); ++m)
        members[plan_.has_rank_directories() ? plan_.files[f].members[m].ranks.front() : 0]
            .emplace_back(f, m);
    }
    for (std::uint32_t rank = 0; rank < n_ranks; ++rank) {
      Holder holder{.directory = place_.output, .manifest = manifest_, .slots = {}};
      if (plan_.has_rank_directories() && !open_rank(rank, holder)) continue;
      std::map<std::uint32_t, std::vector<Slot>> by_tensor;
      for (const auto& [file, member] : members[rank]) {
        for (const PartRef& at : plan_.files[file].parts) {
          if (candidates_[at.tensor] != nullptr) by_tensor[at.tensor].push_back({at, member});
        }
      }
      for (auto& [tensor, slots] : by_tensor) holder.slots.push_back(std::move(slots));
      visit(holder);
    }
  }

  // False where the directory of a rank is not the one that the base knows.
  bool open_rank(std::uint32_t rank, Holder& holder) {
    const std::string name = shard::rank_directory_name(rank, plan_.slicing->topology.n_ranks());
    const auto& ranks = manifest_.slicing->ranks;
    holder.directory /= name;
    const auto entry = std::ranges::find(ranks, name, &formats::RankEntry::directory);
    const fs::path path = holder.directory / formats::kManifestName;
    auto manifest = formats::read_manifest(holder.directory);
    if (entry == ranks.end() || !manifest || check::hash_file(path) != entry->manifest_hash) {
      found_.remarks.push_back(
          fmt::format("{} is not the rank that {} was made with: its tensors are made again",
                      holder.directory.string(), place_.output.string()));
      return false;
    }
    holder.manifest = *std::move(manifest);
    return true;
  }

  // Takes the hash of a slice in the base. Replicas have the same one.
  void learn(const Slot& slot, const PlannedSlice& slice, const Hash128& hash) {
    Hash128& known = run_.results[slot.at.tensor].output[slot.at.part][slice.hash];
    if (known != Hash128() && known != hash) {
      ++n_damaged_;
      candidates_[slot.at.tensor] = nullptr;
    }
    known = hash;
  }

  // Finds the hashes of all slices of the candidates.
  void learn_outputs() {
    for_each_holder([&](const Holder& holder) {
      if (is_made_up_) return learn_by_files(holder);
      std::map<std::string, TensorRecord, std::less<>> records;
      for (TensorRecord& record : formats::read_tensor_records(
               holder.directory / formats::kRecordsName, holder.manifest.records_hash))
        records.emplace(record.name, std::move(record));
      parallel_for(holder.slots.size(), run_.threads, [&](std::size_t n) {
        const PlannedTensor& planned = plan_.tensors[holder.slots[n].front().at.tensor];
        const auto record = records.find(plan_.tensor_of(planned).name);
        if (record == records.end()) return;
        TensorResult unknown;
        for (std::size_t p = 0; p < planned.n_parts; ++p)
          unknown.output.emplace_back(n_hashes(planned, p));
        for (const Slot& slot : holder.slots[n]) {
          const PlannedSlice slice = slice_at(plan_, planned, slot.at, slot.member);
          const TensorHash wanted = output_hash(plan_, planned, slot.at.part, slice, unknown, {});
          const auto found = std::ranges::find_if(
              record->second.output,
              [&](const TensorHash& part) { return is_same_part(part, wanted); });
          if (found != record->second.output.end()) learn(slot, slice, found->hash);
        }
      });
    });
    keep_if([&](std::uint32_t i) {
      return std::ranges::all_of(run_.results[i].output, [](const std::vector<Hash128>& hashes) {
        return std::ranges::find(hashes, Hash128()) == hashes.end();
      });
    });
  }

  // The manifest has the hash of each file, over those of its tensors.
  void learn_by_files(const Holder& holder) {
    const BaseFiles base(holder.directory, holder.manifest, plan_.options.layout->has_shards(),
                         run_.threads);
    const auto hashed = check::hash_stored({base.stored(), base.bytes()}, run_.threads);
    std::map<std::string_view, std::pair<std::uint32_t, std::uint32_t>> joined;  // file, member
    for (std::uint32_t f = 0; f < plan_.files.size(); ++f) {
      for (std::uint32_t m = 0; m < plan_.files[f].members.size(); ++m) {
        if (!plan_.files[f].joined.empty())
          joined.emplace(plan_.files[f].members[m].path, std::pair(f, m));
      }
    }
    std::vector<char> is_sound(base.bytes().files().size(), 0);
    std::size_t at = 0;
    for (std::uint32_t file = 0; file < is_sound.size(); ++file) {
      const std::string& name = base.bytes().files()[file].name;
      std::vector<Hash128> tensors;
      for (; at < hashed.size() && base.stored()[at].file == file; ++at)
        tensors.push_back(hashed[at].hash.value_or(Hash128()));
      if (const auto of_plan = joined.find(name); of_plan != joined.end())
        tensors = hashes_of_pieces(of_plan->second.first, of_plan->second.second);
      const auto listed =
          std::ranges::find(holder.manifest.files, name, &formats::ManifestFile::name);
      const std::vector<std::byte> header = base.bytes().header_bytes(file);
      is_sound[file] = formats::weights_file_hash(header, tensors) == listed->hash ? 1 : 0;
      if (is_sound[file] == 0) n_damaged_ += tensors.size();
    }
    parallel_for(holder.slots.size(), run_.threads, [&](std::size_t n) {
      for (const Slot& slot : holder.slots[n]) {
        const PlannedTensor& planned = plan_.tensors[slot.at.tensor];
        const PlannedSlice slice = slice_at(plan_, planned, slot.at, slot.member);
        const auto found = base.find(plan_, slot, slice);
        if (found && is_sound[found->file] != 0)
          learn(slot, slice,
                base.read(*found, slice, [](std::uint64_t, std::span<const std::byte>) {}));
      }
    });
  }

  // The hashes that the hash of a file with joined tensors is over, if the base has the file as the
  // plan has it; else none.
  [[nodiscard]] std::vector<Hash128> hashes_of_pieces(std::uint32_t number,
                                                      std::uint32_t member) const {
    std::vector<Hash128> hashes;
    if (!has_same_frame(number)) return hashes;
    const PlannedFile& file = plan_.files[number];
    auto part = file.parts.begin();
    for (const PlannedFile::Joined& joined : file.joined) {
      if (joined.is_constant()) {
        TensorHasher hasher;
        hasher.update(std::as_bytes(std::span(joined.bytes)));
        hashes.push_back(hasher.finish());
      }
      for (std::uint32_t n = 0; n < joined.n_parts; ++n, ++part) {
        const PlannedSlice slice = slice_at(plan_, plan_.tensors[part->tensor], *part, member);
        hashes.push_back(hash_of_slice(place_.output / file.members[member].path, slice));
      }
    }
    return hashes;
  }

  // True if each file of a row of the plan is in the base, but for the bytes of tensors.
  [[nodiscard]] bool has_same_frame(std::uint32_t number) const {
    const PlannedFile& file = plan_.files[number];
    const std::vector<Plan::KnownBytes> known = plan_.known_bytes(number);
    return std::ranges::all_of(file.members, [&](const PlannedFile::Member& member) {
      const fs::path path = place_.output / member.path;
      const auto stamp = stamp_of(path);
      if (!stamp || stamp->n_bytes != file.n_bytes) return false;
      const Fd opened = Fd::open_for_reading(path);
      return std::ranges::all_of(known, [&](const Plan::KnownBytes& stretch) {
        std::string found(stretch.bytes.size(), '\0');
        opened.read_exact(std::as_writable_bytes(std::span(found)), stretch.offset);
        return found == stretch.bytes;
      });
    });
  }
  // True if all tensors of a row of files are taken over.
  [[nodiscard]] bool is_all_taken(std::uint32_t number) const {
    const PlannedFile& planned = plan_.files[number];
    return planned.is_here && std::ranges::all_of(planned.parts, [&](const PartRef& part) {
             return candidates_[part.tensor] != nullptr;
           });
  }

  void link_whole_files() {
    std::vector<char>& is_whole = found_.whole_files;
    parallel_for(plan_.files.size(), run_.threads, [&](std::size_t f) {
      const auto number = static_cast<std::uint32_t>(f);
      is_whole[f] = is_all_taken(number) && has_same_frame(number) ? 1 : 0;
    });
    keep_if([&](std::uint32_t i) {
      const PlannedTensor& planned = plan_.tensors[i];
      for (std::size_t p = 0; p < planned.n_parts; ++p) {
        for (const PlannedSlice& slice : slices_of(plan_, planned, p)) {
          if (is_whole[plan_.places[slice.place].file] == 0) continue;
          const fs::path path = place_.output / plan_.member_path(slice.member);
          if (hash_of_slice(path, slice) == run_.results[i].output[p][slice.hash]) continue;
          ++n_damaged_;
          return false;
        }
      }
      return true;
    });
    for (std::uint32_t number = 0; number < plan_.files.size(); ++number) {
      if (is_whole[number] == 0) continue;
      is_whole[number] = is_all_taken(number) ? 1 : 0;
      if (is_whole[number] == 0) continue;
      for (const PlannedFile::Member& member : plan_.files[number].members) {
        // A link of the base may lead elsewhere: the file itself gets another name.
        (void)run_.staged.share(fs::canonical(place_.output / member.path), member.path,
                                run_.links);
        ++found_.n_whole;
      }
    }
  }

  void copy_others() {
    for_each_holder([&](const Holder& holder) {
      const bool has_others = std::ranges::any_of(holder.slots, [&](const auto& slots) {
        return std::ranges::any_of(slots, [&](const Slot& slot) { return is_copied(slot); });
      });
      if (!has_others) return;
      const BaseFiles base(holder.directory, holder.manifest, plan_.options.layout->has_shards(),
                           run_.threads);
      std::map<std::uint32_t, const std::vector<Slot>*> by_tensor;
      for (const auto& slots : holder.slots) by_tensor.emplace(slots.front().at.tensor, &slots);
      keep_if([&](std::uint32_t i) {
        const auto slots = by_tensor.find(i);
        return slots == by_tensor.end() || std::ranges::all_of(*slots->second, [&](const auto& s) {
                 return !is_copied(s) || copy(base, s);
               });
      });
    });
    // A file of which a tensor is made after all, with another one of its set, is written to.
    for (std::uint32_t number = 0; number < plan_.files.size(); ++number) {
      if (found_.whole_files[number] == 0 || is_all_taken(number)) continue;
      found_.whole_files[number] = 0;
      found_.n_whole -= plan_.files[number].members.size();
    }
  }
  [[nodiscard]] bool is_copied(const Slot& slot) const {
    const std::uint32_t file = plan_.places[slot.at.place].file;
    return plan_.files[file].is_here && found_.whole_files[file] == 0;
  }

  // False where the base has not the slice that its records tell of.
  bool copy(const BaseFiles& base, const Slot& slot) {
    const PlannedTensor& planned = plan_.tensors[slot.at.tensor];
    const PlannedSlice slice = slice_at(plan_, planned, slot.at, slot.member);
    const auto found = base.find(plan_, slot, slice);
    if (!found) return false;
    Fd target;
    {
      const std::lock_guard lock(mutex_);  // a file is made once
      const std::string& path = plan_.member_path(slice.member);
      (void)Folder::open(run_.staged.directory()).make(fs::path(path).parent_path());
      target = run_.staged.open(path);
    }
    std::vector<std::byte> run;
    const Hash128 hash =
        base.read(*found, slice, [&](std::uint64_t done, std::span<const std::byte> piece) {
          if (!slice.turned.is_turned()) return target.write_exact(piece, slice.offset + done);
          slice.turned.for_each_run(done, done + piece.size(),
                                    [&](std::uint64_t at, std::uint64_t n, std::uint64_t from) {
                                      run.resize(n);
                                      for (std::byte& byte : run) {
                                        byte = piece[from];
                                        from += slice.turned.cols;
                                      }
                                      target.write_exact(run, slice.offset + at);
                                    });
        });
    if (hash == run_.results[slot.at.tensor].output[slot.at.part][slice.hash]) return true;
    ++n_damaged_;
    return false;
  }

  const BasePlace& place_;
  const TakeOver& run_;
  const Plan& plan_;
  formats::Manifest manifest_;
  std::map<std::string, TensorRecord> records_;
  bool is_made_up_ = false;  // records of the base are made of its source
  std::set<std::optional<std::uint32_t>> lost_layers_;
  std::vector<const TensorRecord*> candidates_;  // by tensor of the plan; null: encoded
  std::atomic<std::uint64_t> n_damaged_ = 0;
  std::mutex mutex_;  // guards the making of staged files
  TakenOver found_;
};

}  // namespace

void require_base(const BasePlace& place) {
  const auto manifest = formats::read_manifest(place.output);
  if (!manifest) {
    throw Error(ErrorCode::kInvalidArgument,
                "has no {}: only an output of ingot tells from which tensors it was made",
                formats::kManifestName)
        .in_file(place.output.string());
  }
  if (manifest->slicing && manifest->slicing->rank) {
    throw Error(ErrorCode::kInvalidArgument,
                "is one rank of an output: give the directory above all ranks")
        .in_file(place.output.string());
  }
  if (place.source.empty() && !stamp_of(place.output / formats::kRecordsName)) {
    throw Error(ErrorCode::kInvalidArgument,
                "has no {}, which tells from which tensors it was made (--base-source, with the "
                "source of this output, makes up for it)",
                formats::kRecordsName)
        .in_file(place.output.string());
  }
}

TakenOver take_over(const BasePlace& place, const TakeOver& run) {
  return BaseReader(place, run).take();
}

}  // namespace ingot::convert
