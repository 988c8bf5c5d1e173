#include "convert/job/base_output.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <set>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/version.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_files.h"
#include "formats/config/model_config.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "formats/storage/stored_names.h"
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
  for (const char* key : {"shards", "align", "links", "allow"}) recipe.erase(key);
  return recipe;
}

// True if two records name the same stored tensors, maybe in other files, and maybe with other
// bytes.
bool have_same_parts(std::span<const TensorHash> a, std::span<const TensorHash> b) {
  return std::ranges::equal(a, b, [](const TensorHash& x, const TensorHash& y) {
    return x.name == y.name && x.dtype == y.dtype && x.shape == y.shape && !x.slice && !y.slice &&
           !x.piece && !y.piece;
  });
}

bool have_same_bytes(std::span<const TensorHash> a, std::span<const TensorHash> b) {
  return std::ranges::equal(a, b, {}, &TensorHash::hash, &TensorHash::hash);
}

class BaseReader {
 public:
  BaseReader(const BasePlace& place, const TakeOver& run)
      : place_(place), run_(run), plan_(run.plan) {
    require_base(place);
    manifest_ = *formats::read_manifest(place.output);
    found_.whole_files.assign(plan_.files.size(), 0);
  }

  TakenOver take() {
    if (const std::string reason = obstacle(); !reason.empty()) {
      found_.remarks.push_back(
          fmt::format("nothing is taken over from {}: {}", place_.output.string(), reason));
      return std::move(found_);
    }
    open();
    match();
    if (!place_.source.empty()) require_source();
    hash_sources();
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
  // Why no tensor can be taken over; empty where some may be.
  [[nodiscard]] std::string obstacle() const {
    if (plan_.is_sliced() || manifest_.slicing || manifest_.layout != plan_.options.layout->name)
      return "only outputs that are not cut for ranks are";
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
      return "it was made by another recipe, or other statistics";
    if (!(manifest_.source_quantization == *plan_.source_facts.quantization))
      return "its source was quantized in another way";
    return {};
  }

  void open() {
    for (TensorRecord& record : formats::read_tensor_records(place_.output / formats::kRecordsName,
                                                             manifest_.records_hash))
      records_.emplace(record.name, std::move(record));
    std::vector<std::string> names;
    for (const formats::ManifestFile& file : manifest_.files) names.push_back(file.name);
    std::ranges::sort(names);
    std::vector<formats::WeightsFile> files = formats::locate_files(names, place_.output, {});
    ErrorList faults;
    stored_ = formats::read_headers(files, run_.threads, faults);
    faults.throw_if_any();
    names_.emplace(stored_);
    files_.emplace(std::move(files));
  }

  // Finds the record of each tensor that this run would write in the same way.
  void match() {
    candidates_.assign(plan_.tensors.size(), nullptr);
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
      unknown.output.assign(planned.n_parts, std::vector<Hash128>(1));
      const TensorRecord made = record_of(plan_, planned, unknown);
      std::vector<TensorHash> outputs;
      for (std::size_t p = 0; p < planned.n_parts; ++p)
        outputs.push_back(
            output_hash(plan_, planned, p, slices_of(plan_, planned, p).front(), unknown, {}));
      const bool is_exact = planned.action == Action::kCopy || planned.action == Action::kRewrap;
      if (made.role == record.role && made.layer == record.layer && made.expert == record.expert &&
          made.action == record.action && made.from == record.from && made.to == record.to &&
          made.giver == record.giver && !record.change &&
          have_same_parts(source_hashes(plan_, planned, unknown), record.source) &&
          !record.source.empty() && have_same_parts(outputs, record.output) &&
          (is_exact || !run_.lossless_only))
        candidates_[i] = &record;
    }
    drop_broken_sets();
  }

  // Tensors that are quantized together are taken over together, and not where the base has tensors
  // of their layer that are gone: one of them may have been of the set.
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
    const formats::Checkpoint old = shard::open_source(
        place_.source,
        {.open = {.family = std::string(plan_.source.family().name), .threads = run_.threads}});
    const formats::StoredNames names(old.stored());
    std::map<std::string_view, Hash128> recorded;
    for (const auto& [name, record] : records_) {
      for (const TensorHash& part : record.source) recorded.emplace(part.name, part.hash);
    }
    const auto hashed = check::hash_stored({old.stored(), old.bytes()}, run_.threads);
    for (std::size_t i = 0; i < hashed.size(); ++i) {
      const StoredTensor& tensor = old.stored()[i];
      if (hashed[i].failure) throw *hashed[i].failure;
      const auto at = recorded.find(tensor.name);
      if (at == recorded.end() || !hashed[i].hash || *hashed[i].hash == at->second) continue;
      throw Error(ErrorCode::kMismatch,
                  "is not the tensor from which {} was made (is it another version of the source?)",
                  place_.output.string())
          .in_file(place_.source.string())
          .in_tensor(tensor.name);
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
      for (const TensorHash& part : record.output) result.output.push_back({part.hash});
      result.recorded_error = record.error;
      result.original_global = record.original_global;
      result.carries_errors = record.carries_errors;
      return true;
    });
  }

  [[nodiscard]] const StoredTensor* stored_of(const TensorHash& part, std::uint64_t n_bytes) const {
    const auto found = names_->find(part.name);
    return found && stored_[*found].n_bytes == n_bytes ? &stored_[*found] : nullptr;
  }

  // Hashes the parts of a tensor in the base, and gives their pieces to put(part, offset, bytes).
  template <typename Put>
  bool read_parts(std::uint32_t i, const Put& put) {
    const PlannedTensor& planned = plan_.tensors[i];
    for (std::size_t p = 0; p < planned.n_parts; ++p) {
      const TensorHash& part = candidates_[i]->output[p];
      const StoredTensor* stored = stored_of(part, planned.parts[p].n_bytes);
      if (stored == nullptr) return false;
      TensorHasher hasher;
      std::vector<std::byte> buffer(
          static_cast<std::size_t>(std::min<std::uint64_t>(kTakePiece, stored->n_bytes)));
      for (std::uint64_t at = 0; at < stored->n_bytes; at += buffer.size()) {
        StopScope::check();
        const auto piece = std::span(buffer).first(
            static_cast<std::size_t>(std::min<std::uint64_t>(buffer.size(), stored->n_bytes - at)));
        files_->read_file(stored->file, stored->offset + at, piece);
        hasher.update(piece);
        put(p, at, piece);
      }
      if (hasher.finish() != part.hash) {
        ++n_damaged_;
        return false;
      }
    }
    return true;
  }

  // The file of the base that is a file of the plan to the byte, if all of its tensors are the
  // same.
  [[nodiscard]] std::optional<std::uint32_t> same_file(std::uint32_t number) const {
    const PlannedFile& planned = plan_.files[number];
    if (!planned.is_here || planned.members.size() != 1 || !planned.joined.empty())
      return std::nullopt;
    for (const PartRef& part : planned.parts) {
      if (candidates_[part.tensor] == nullptr) return std::nullopt;
    }
    const auto files = files_->files();
    const auto at =
        std::ranges::find(files, planned.members.front().path, &formats::SourceFile::name);
    if (at == files.end() || at->n_bytes != planned.n_bytes) return std::nullopt;
    const auto file = static_cast<std::uint32_t>(at - files.begin());
    const std::vector<std::byte> header = files_->header_bytes(file);
    const std::string wanted = plan_.header(number);
    return std::ranges::equal(header, std::as_bytes(std::span(wanted))) ? std::optional(file)
                                                                        : std::nullopt;
  }

  void link_whole_files() {
    std::vector<std::uint32_t> numbers;
    std::set<std::uint32_t> tensors;
    for (std::uint32_t number = 0; number < plan_.files.size(); ++number) {
      if (!same_file(number)) continue;
      numbers.push_back(number);
      for (const PartRef& part : plan_.files[number].parts) tensors.insert(part.tensor);
    }
    keep_if([&](std::uint32_t i) {
      return !tensors.contains(i) ||
             read_parts(i, [](std::size_t, std::uint64_t, std::span<const std::byte>) {});
    });
    for (const std::uint32_t number : numbers) {
      const auto file = same_file(number);
      if (!file) continue;
      // A link of the base may lead elsewhere: the file itself gets another name.
      (void)run_.staged.share(fs::canonical(files_->path(*file)),
                              plan_.files[number].members.front().path, run_.links);
      found_.whole_files[number] = 1;
      ++found_.n_whole;
    }
  }

  void copy_others() {
    keep_if([&](std::uint32_t i) {
      const PlannedTensor& planned = plan_.tensors[i];
      std::vector<Fd> targets;
      std::vector<std::uint64_t> offsets;
      for (std::size_t p = 0; p < planned.n_parts; ++p) {
        const PlannedSlice slice = slices_of(plan_, planned, p).front();
        offsets.push_back(slice.offset);
        const bool is_whole = found_.whole_files[plan_.places[slice.place].file] != 0;
        const std::lock_guard lock(mutex_);  // a file is made once
        targets.push_back(is_whole ? Fd() : run_.staged.open(plan_.member_path(slice.member)));
      }
      if (std::ranges::none_of(targets, &Fd::valid)) return true;
      return read_parts(i, [&](std::size_t p, std::uint64_t at, std::span<const std::byte> piece) {
        if (targets[p].valid()) targets[p].write_exact(piece, offsets[p] + at);
      });
    });
    // A file of which a tensor is made after all, with another one of its set, is written to.
    for (std::uint32_t number = 0; number < plan_.files.size(); ++number) {
      if (found_.whole_files[number] == 0 || same_file(number)) continue;
      found_.whole_files[number] = 0;
      --found_.n_whole;
    }
  }

  const BasePlace& place_;
  const TakeOver& run_;
  const Plan& plan_;
  formats::Manifest manifest_;
  std::map<std::string, TensorRecord> records_;
  std::vector<StoredTensor> stored_;
  std::optional<formats::StoredNames> names_;
  std::optional<formats::CheckpointFiles> files_;
  std::set<std::optional<std::uint32_t>> lost_layers_;
  std::vector<const TensorRecord*> candidates_;  // by tensor of the plan; null: encoded
  std::atomic<std::uint64_t> n_damaged_ = 0;
  std::mutex mutex_;  // guards the making of staged files
  TakenOver found_;
};

}  // namespace

void require_base(const BasePlace& place) {
  if (formats::read_manifest(place.output)) return;
  throw Error(ErrorCode::kInvalidArgument,
              "has no {}: only an output of ingot tells from which tensors it was made",
              formats::kManifestName)
      .in_file(place.output.string());
}

TakenOver take_over(const BasePlace& place, const TakeOver& run) {
  return BaseReader(place, run).take();
}

}  // namespace ingot::convert
