#include "delta/make.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include <fcntl.h>
#include <fmt/format.h>

#include "delta/file_copy.h"
#include "delta/journal.h"
#include "delta/piece_reader.h"
#include "delta/stream.h"
#include "delta/weights.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/files/folder.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::Json;
using formats::StoredTensor;

namespace {

// A file ends behind the tensor with which it has so many bytes, or so many tensors: headers stay
// far below their limit.
constexpr std::uint64_t kDeltaFileBytes = 5'000'000'000;
constexpr std::size_t kDeltaFileTensors = 100'000;
constexpr std::size_t kJoinPiece = std::size_t{1} << 20;

constexpr std::size_t kNoOther = ~std::size_t{0};

/// A payload in the file of the worker that made it.
struct Spilled {
  std::size_t worker = 0;
  std::uint64_t offset = 0;
  TensorDifference difference;
  /// The tensor with the same bytes on both sides, in files that ranks share: it has the payload.
  std::size_t like = kNoOther;
};

// Throws where a delta has no form for the difference of the headers.
void require_same_tensors(const Weights& old, const Weights& now) {
  ErrorList faults;
  for (const StoredTensor& tensor : now.stored()) {
    const StoredTensor* before = old.find(tensor.name);
    if (before == nullptr) {
      faults.add(ErrorCode::kUnsupported, tensor.name, "is not in the old version");
    } else if (before->dtype != tensor.dtype || before->shape != tensor.shape) {
      faults.add(ErrorCode::kUnsupported, tensor.name, "is {} {}, and {} {} in the old version",
                 formats::dtype_name(tensor.dtype), formats::shape_text(tensor.shape),
                 formats::dtype_name(before->dtype), formats::shape_text(before->shape));
    }
  }
  for (const StoredTensor& tensor : old.stored()) {
    if (now.find(tensor.name) == nullptr)
      faults.add(ErrorCode::kUnsupported, tensor.name, "is not in the new version");
  }
  if (faults.empty()) return;
  faults.add(Error(ErrorCode::kUnsupported,
                   "a delta has the bytes of tensors that stay what they are: publish the new "
                   "version whole (the checkpoint in a directory weight_v and its number)"));
  faults.throw_if_any();
}

// True if both sides have the same weights files but for the bytes of tensors, so that records of
// files are those of the patched ones.
bool have_same_files(const Weights& old, const Weights& now) {
  if (!std::ranges::equal(old.files(), now.files(), [](const auto& a, const auto& b) {
        return a.name == b.name && a.n_bytes == b.n_bytes;
      }))
    return false;
  for (std::uint32_t file = 0; file < old.files().size(); ++file) {
    if (old.bytes().header_bytes(file) != now.bytes().header_bytes(file)) return false;
  }
  return true;
}

class Maker {
 public:
  Maker(const Weights& old, const Weights& now, const fs::path& staged, const MakeOptions& options)
      : old_(old), now_(now), staged_(staged), folder_(Folder::open(staged)), options_(options) {}

  void write(MadeDelta& made, DeltaRecord& record) {
    compare(record);
    join_payloads(made, record);
    write_extra(record);
    const Hash128 hash = write_record(staged_ / kDeltaRecordName, record);
    made.n_extra = record.extra.size();
    write_index(made, hash);
  }

 private:
  void compare(DeltaRecord& record) {
    const auto stored = now_.stored();
    for (const StoredTensor& tensor : stored) order_.push_back(&tensor);
    std::ranges::sort(order_, {}, &StoredTensor::name);
    spilled_.resize(order_.size());
    find_shared();
    if (options_.by_records) {
      old_hashes_ = old_.recorded_hashes();
      new_hashes_ = now_.recorded_hashes();
    }
    const std::uint64_t total = 2 * now_.n_bytes();
    std::atomic<std::uint64_t> done = 0;
    std::atomic<std::size_t> next = 0;
    std::atomic<bool> has_failed = false;
    // Twice as many as compute: the others wait for a disk.
    const std::size_t threads = std::max<std::size_t>(options_.threads, 1);
    const std::size_t workers = std::max<std::size_t>(std::min(2 * threads, order_.size()), 1);
    Turns turns(static_cast<std::ptrdiff_t>(threads));
    // The largest first, so that none of them is what all others wait for in the end.
    std::vector<std::size_t> by_size(order_.size());
    std::iota(by_size.begin(), by_size.end(), std::size_t{0});
    std::ranges::stable_sort(by_size, std::greater{},
                             [&](std::size_t i) { return order_[i]->n_bytes; });
    for (std::size_t worker = 0; worker < workers; ++worker)
      spills_.push_back(folder_.replace(fmt::format("spill-{}", worker), O_RDWR));
    const StopScope::Transfer scope;
    run_workers(workers, [&](std::size_t worker) {
      const StopScope::Transfer::Guard guard(scope);
      Worker state{.number = worker,
                   .old = PieceReader(old_, turns),
                   .now = PieceReader(now_, turns),
                   .writer = DifferenceWriter(options_.encoding, options_.checksum, threads)};
      while (!has_failed) {
        const std::size_t n = next++;
        if (n >= by_size.size()) return;
        const std::size_t i = by_size[n];
        try {
          turns.acquire();
          const Turn turn{turns};
          compare_one(i, state);
        } catch (...) {
          has_failed = true;
          throw;
        }
        done += 2 * order_[i]->n_bytes;
        if (options_.progress) options_.progress(done, total);
      }
    });
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const std::size_t like = spilled_[i].like;
      const TensorDifference& difference = spilled_[like == kNoOther ? i : like].difference;
      RecordedTensor& recorded = record.tensors.emplace_back(
          RecordedTensor{.name = order_[i]->name,
                         .dtype = std::string(formats::dtype_name(order_[i]->dtype)),
                         .shape = order_[i]->shape,
                         .base = difference.old_hash,
                         .next = {}});
      if (difference.n_changed == 0) continue;
      recorded.next = difference.new_hash;
      if (like != kNoOther) recorded.like = order_[like]->name;
    }
  }

  // Finds tensors that both sides have in files with several names.
  void find_shared() {
    std::map<std::array<std::uint64_t, 4>, std::size_t> seen;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const StoredTensor& after = *order_[i];
      const StoredTensor& before = *old_.find(after.name);
      const auto [at, is_new] =
          seen.emplace(std::array<std::uint64_t, 4>{old_.first_of(before.file), before.offset,
                                                    now_.first_of(after.file), after.offset},
                       i);
      if (!is_new && after.n_bytes > 0) spilled_[i].like = at->second;
    }
  }

  struct Worker {
    std::size_t number = 0;
    PieceReader old, now;
    DifferenceWriter writer;
    std::uint64_t end = 0;  // of its payloads
  };
  struct Turn {
    ~Turn() { turns.release(); }
    Turns& turns;
  };

  void compare_one(std::size_t i, Worker& worker) {
    const StoredTensor& tensor = *order_[i];
    Spilled& spilled = spilled_[i];
    if (spilled.like != kNoOther) return;
    const auto known = old_hashes_.find(tensor.name), is = new_hashes_.find(tensor.name);
    if (known != old_hashes_.end() && is != new_hashes_.end() && known->second == is->second) {
      spilled.difference.old_hash = known->second;
      return;
    }
    const StoredTensor& before = *old_.find(tensor.name);
    spilled.worker = worker.number;
    spilled.offset = worker.end;
    const auto reader_of = [](PieceReader& reader, const StoredTensor& stored) {
      return [&](std::uint64_t offset, std::size_t n) { return reader.read(stored, offset, n); };
    };
    try {
      spilled.difference = worker.writer.write(
          {tensor.n_bytes, reader_of(worker.old, before), reader_of(worker.now, tensor)},
          [&](std::span<const std::byte> bytes) {
            spills_[worker.number].write_exact(bytes, worker.end);
            worker.end += bytes.size();
          });
    } catch (Error& error) {
      error.in_tensor(tensor.name);
      throw;
    }
  }

  // Puts payloads into files, in the order of names.
  void join_payloads(MadeDelta& made, const DeltaRecord& record) {
    std::vector<std::vector<std::size_t>> files;
    std::uint64_t in_file = 0;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const TensorDifference& difference = spilled_[i].difference;
      if (!record.tensors[i].next) continue;
      if (spilled_[i].like != kNoOther) {
        ++made.n_changed;
        continue;
      }
      if (files.empty() || in_file >= kDeltaFileBytes || files.back().size() >= kDeltaFileTensors) {
        files.emplace_back();
        in_file = 0;
      }
      files.back().push_back(i);
      in_file += difference.n_payload;
      ++made.n_changed;
      made.n_changed_bytes += difference.n_changed;
      made.n_payload += difference.n_payload;
    }
    made.n_files = files.size();
    weight_map_ = Json::object();
    auto& members = weight_map_.get_ref<Json::object_t&>();
    for (std::size_t number = 0; number < files.size(); ++number) {
      const std::string name =
          fmt::format("model-{:05}-of-{:05}.safetensors", number, files.size());
      write_file(name, files[number]);
      for (const std::size_t i : files[number]) members.emplace_back(order_[i]->name, name);
    }
    for (std::size_t worker = 0; worker < spills_.size(); ++worker) {
      spills_[worker].close();
      folder_.remove(fmt::format("spill-{}", worker));
    }
  }

  void write_file(const std::string& name, const std::vector<std::size_t>& tensors) {
    std::vector<formats::TensorSpec> specs;
    std::vector<std::pair<std::string, std::string>> sums;
    for (const std::size_t i : tensors) {
      const TensorDifference& difference = spilled_[i].difference;
      specs.push_back(
          {.name = order_[i]->name, .dtype = formats::DType::kU8, .shape = {difference.n_payload}});
      sums.emplace_back(order_[i]->name, difference.checksum);
    }
    const std::string header = formats::safetensors_header_text(specs, sums);
    Fd file = folder_.replace(name, O_WRONLY);
    file.write_exact(std::as_bytes(std::span(header)), 0);
    std::uint64_t at = header.size();
    std::vector<std::byte> piece(kJoinPiece);
    for (const std::size_t i : tensors) {
      const Spilled& spilled = spilled_[i];
      const std::uint64_t n = spilled.difference.n_payload;
      for (std::uint64_t copied = 0; copied < n; copied += piece.size()) {
        StopScope::check();
        const auto part = std::span(piece).first(
            static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), n - copied)));
        spills_[spilled.worker].read_exact(part, spilled.offset + copied);
        file.write_exact(part, at);
        at += part.size();
      }
    }
    file.sync();
    file.close();
  }

  // Files that are others now; the index and the manifest only if they are those of the files that
  // become of the base's.
  void write_extra(DeltaRecord& record) {
    const bool has_same_files = have_same_files(old_, now_);
    const auto is_index = [](const std::string& name) {
      return fs::path(name).filename() == formats::kIndexName;
    };
    const std::vector<std::string> before = extra_names(old_);
    std::vector<std::string> after = extra_names(now_);
    if (!has_same_files) {
      std::erase_if(after, is_own_record);
      // The index of the base stays, which is right: the same tensors are in its files.
      std::erase_if(after, is_index);
    }
    for (const std::string& name : after) {
      const fs::path from = now_.directory() / name;
      if (std::ranges::binary_search(before, name) &&
          hash_of_file(old_.directory() / name) == hash_of_file(from))
        continue;
      const fs::path to = fs::path(kExtraName) / name;
      const Hash128 hash = copy_into(from, folder_, to);
      record.extra.push_back({.name = name, .n_bytes = fs::file_size(staged_ / to), .hash = hash});
    }
    for (const std::string& name : before) {
      if (std::ranges::binary_search(after, name)) continue;
      if (!is_index(name) || has_same_files) record.removed.push_back(name);
    }
  }

  void write_index(const MadeDelta& made, const Hash128& record_hash) {
    const Json index = {{"metadata",
                         {{"version", version_text(made.version)},
                          {"base_version", version_text(made.base)},
                          {"delta_encoding", encoding_name(made.encoding)},
                          {"compression_format", "zstd"},
                          {"checksum_format", checksum_row(made.checksum).name},
                          {kRecordKey, record_hash.hex()}}},
                        {"weight_map", weight_map_}};
    write_text_file(staged_ / formats::kIndexName, formats::json_text(index));
  }

  const Weights& old_;
  const Weights& now_;
  const fs::path staged_;
  const Folder folder_;
  const MakeOptions& options_;
  std::vector<const StoredTensor*> order_;
  std::vector<Spilled> spilled_;
  std::vector<Fd> spills_;
  std::map<std::string, Hash128, std::less<>> old_hashes_, new_hashes_;  // none: all are read
  Json weight_map_;
};

// Throws where the record of the stream's last version tells that `old` is another one.
void require_last(const DeltaRecord& record, const Version& last) {
  if (!last.record) return;
  for (const RecordedTensor& tensor : record.tensors) {
    const RecordedTensor* before = last.record->find(tensor.name);
    if (before == nullptr || before->next.value_or(before->base) != tensor.base) {
      throw Error(ErrorCode::kMismatch,
                  "is not what it is in {} of the stream: the old version is another one (give the "
                  "checkpoint of that version, or begin another stream)",
                  version_name(last.number))
          .in_tensor(tensor.name);
    }
  }
}

// True if a version leads from one checkpoint to the other, as far as the records of both tell.
bool is_between(const Version& version, const Weights& old, const Weights& now) {
  if (!version.record) return false;
  const auto before = old.recorded_hashes(), after = now.recorded_hashes();
  const auto has = [](const auto& hashes, const std::string& name, const Hash128& wanted) {
    const auto found = hashes.find(name);
    return found != hashes.end() && found->second == wanted;
  };
  return version.record->tensors.size() == now.stored().size() &&
         std::ranges::all_of(version.record->tensors,
                             [&](const RecordedTensor& tensor) {
                               return has(before, tensor.name, tensor.base) &&
                                      has(after, tensor.name, tensor.next.value_or(tensor.base));
                             }) &&
         std::ranges::all_of(version.extra, [&](const ExtraFile& file) {
           const fs::path path = now.directory() / file.name;
           return stamp_of(path) && hash_of_file(path) == file.hash;
         });
}

}  // namespace

MadeDelta make_delta(const fs::path& old_directory, const fs::path& new_directory,
                     const fs::path& stream, const MakeOptions& options) {
  // A name for its place: a model's folder may not get one.
  require_outside_models(stream / "version");
  const Weights old(old_directory, options.threads), now(new_directory, options.threads);
  require_same_tensors(old, now);
  MadeDelta made;
  const std::vector<std::uint64_t> versions = versions_in(stream);
  made.base = versions.empty() ? 0 : versions.back();
  made.version = made.base + 1;
  std::optional<Version> last;
  if (!versions.empty()) last = open_version(stream / version_name(made.base));
  if (options.is_again && last && is_between(*last, old, now)) {
    return {.directory = last->directory,
            .version = last->number,
            .base = last->base,
            .encoding = last->encoding,
            .checksum = last->checksum,
            .n_tensors = now.stored().size(),
            .n_bytes = now.n_bytes(),
            .n_changed = last->tensors.size(),
            .n_files = last->files.size(),
            .n_payload = last->n_payload(),
            .n_extra = last->extra.size(),
            .was_there = true};
  }
  require_one_version(old, state_of(old_directory).value_or(0));
  if (const auto state = state_of(old_directory); state && *state != made.base) {
    throw Error(ErrorCode::kMismatch, "holds version {}, and the stream ends with version {}",
                *state, made.base)
        .in_file(old_directory.string());
  }
  made.checksum = options.checksum;
  made.encoding = options.encoding;
  made.n_tensors = now.stored().size();
  made.n_bytes = now.n_bytes();
  const auto wide = std::ranges::find_if(
      now.stored(), [](const StoredTensor& tensor) { return tensor.n_bytes >= kOverwriteLimit; });
  if (made.encoding == DeltaEncoding::kOverwrite && wide != now.stored().end()) {
    made.encoding = DeltaEncoding::kXor;
    made.remarks.push_back(
        fmt::format("encoding xor, since positions of overwrite do not reach all {} bytes of '{}'",
                    wide->n_bytes, wide->name));
  }
  if (!have_same_files(old, now))
    made.remarks.emplace_back(
        "the two versions have their tensors in different files: the delta changes them where a "
        "base has them, and takes neither index nor manifest along");

  fs::create_directories(stream);
  const Folder folder = Folder::open(stream);
  const Fd lock = Fd::open_directory(stream);
  if (lock.try_lock() == LockState::kHeldElsewhere) {
    throw Error(ErrorCode::kExists, "gets a version from another process at this moment")
        .in_file(stream.string());
  }
  if (versions_in(stream) != versions) {
    throw Error(ErrorCode::kExists, "got a version from another process meanwhile (run it again)")
        .in_file(stream.string());
  }
  const fs::path partial = kStagingName;
  folder.remove_all(partial);
  (void)folder.make(partial);
  try {
    MakeOptions used = options;
    used.encoding = made.encoding;
    DeltaRecord record{.version = made.version, .base = made.base};
    Maker maker(old, now, stream / partial, used);
    maker.write(made, record);
    if (last) require_last(record, *last);
    for (const fs::directory_entry& entry : entries_below(stream / partial)) {
      if (entry.is_directory()) sync_directory(entry.path());
    }
    sync_directory(stream / partial);
    made.directory = stream / version_name(made.version);
    folder.rename(partial, folder, version_name(made.version));
    sync_directory(stream);
  } catch (...) {
    try {
      folder.remove_all(partial);
    } catch (const Error&) {
      // The next run removes it.
    }
    throw;
  }
  return made;
}

}  // namespace ingot::delta
