#include "shard/join/slice_files.h"

#include <map>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/zstd_lines.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

using formats::Json;
using formats::SliceRecord;
using formats::StoredTensor;

namespace {

// Depths of a record: the record, an entry of its `output`, the slice of that.
constexpr std::size_t kRecord = 1, kEntry = 3, kSlice = 4;

// Keeps `home_file` and the names, files, homes, slices, pieces and shapes of `output`; everything
// else passes by.
class RecordEvents final : public formats::JsonEvents {
 public:
  struct Entry {
    std::string name, file, home_file;
    Json slice, piece, shape;
  };

  void begin_object() override { open(Json::object()); }
  void begin_array() override { open(Json::array()); }
  void end() override {
    if (!building_.empty()) building_.pop_back();
    --depth_;
  }
  void key(std::string&& name) override {
    if (!building_.empty()) {
      slice_key_ = std::move(name);
    } else if (depth_ == kRecord) {
      field_ = std::move(name);
    } else if (depth_ == kEntry) {
      member_ = std::move(name);
    }
  }
  void value(Json&& scalar) override {
    if (!building_.empty()) {
      append(std::move(scalar));
    } else if (depth_ == kRecord && field_ == "home_file" && scalar.is_string()) {
      home_file = std::move(scalar.get_ref<std::string&>());
    } else if (depth_ == kRecord ? field_ == "home_file" || field_ == "output"
                                 : depth_ + 1 == kEntry && field_ == "output") {
      is_record = false;
    } else if (is_in_entry() && scalar.is_string()) {
      auto& text = scalar.get_ref<std::string&>();
      if (member_ == "name") entries.back().name = std::move(text);
      if (member_ == "file") entries.back().file = std::move(text);
      if (member_ == "home_file") entries.back().home_file = std::move(text);
    }
  }

  std::vector<Entry> entries;
  std::string home_file;
  bool is_record = true;  ///< an object whose kept members have the right kinds

 private:
  [[nodiscard]] bool is_in_entry() const { return depth_ == kEntry && field_ == "output"; }

  void open(Json&& container) {
    const bool is_output = depth_ > 0 && field_ == "output";
    ++depth_;
    if (depth_ == kRecord || (depth_ == kEntry && is_output))
      is_record = is_record && container.is_object();
    if (depth_ == kRecord + 1 && is_output) is_record = is_record && container.is_array();
    if (depth_ == kRecord + 1 && field_ == "home_file") is_record = false;
    if (!building_.empty()) {
      building_.push_back(append(std::move(container)));
    } else if (Json* kept = depth_ == kSlice && is_output ? member() : nullptr) {
      *kept = std::move(container);
      building_.push_back(kept);
    } else if (depth_ == kEntry && is_output) {
      entries.emplace_back();
      member_.clear();
    }
  }

  // The kept member of an entry under the key at hand; null: it is not kept.
  Json* member() {
    Entry& entry = entries.back();
    if (member_ == "slice") return &entry.slice;
    if (member_ == "piece") return &entry.piece;
    return member_ == "shape" ? &entry.shape : nullptr;
  }

  Json* append(Json&& value) {
    Json& parent = *building_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    auto& members = parent.get_ref<Json::object_t&>();
    members.emplace_back(std::move(slice_key_), std::move(value));
    return &members.back().second;
  }

  std::size_t depth_ = 0;
  std::string field_, member_, slice_key_;
  std::vector<Json*> building_;  // a parent grows only after its child is closed
};

// Slices go to the join in portions of so many.
constexpr std::size_t kPortion = 4096;

// The stored tensors of files of one directory, until the records have told their places.
class Placing {
 public:
  Placing(SliceJoin& join, const WholeName& whole_name, ErrorList& faults,
          const std::set<std::string, std::less<>>& constants)
      : join_(join), whole_name_(whole_name), faults_(faults), constants_(constants) {
    found_.reserve(kPortion);
  }

  void open(const SliceFile& file) {
    OpenFile open{
        .index = file.index, .stored = {}, .is_told = {}, .placed = {}, .next = 0, .by_name = {}};
    try {
      open.stored = read_stored(join_, file.index);
    } catch (const Error& error) {
      faults_.add(error);
      return;
    }
    open.is_told.resize(open.stored.size(), false);
    open.placed.resize(open.stored.size(), 0);
    for (std::size_t i = 0; i < open.stored.size(); ++i) {
      if (!constants_.contains(open.stored[i].name)) continue;
      open.is_told[i] = true;
      open.placed[i] = open.stored[i].n_bytes;
    }
    files_.emplace(file.name, std::move(open));
  }

  void place(const RecordedSlice& recorded) {
    const auto file = files_.find(recorded.file);
    // Hard links are placed by the directory that has them first.
    if (file == files_.end()) return;
    OpenFile& open = file->second;
    const bool is_piece = !recorded.piece_of.empty();
    const auto at = open.find(is_piece ? recorded.piece_of : recorded.name);
    if (!at) {
      return report(open, recorded.name,
                    Error(ErrorCode::kMismatch,
                          "the records promise it, but it is not here (changed since it was "
                          "written: run ingot check)"));
    }
    try {
      const StoredTensor stored =
          is_piece ? piece_of(open.stored[*at], recorded) : open.stored[*at];
      open.is_told[*at] = true;
      open.placed[*at] += stored.n_bytes;
      found_.push_back({.name = whole_name_(stored.name),
                        .kind = kind_of(stored, recorded.slice),
                        .file = open.index,
                        .offset = stored.offset,
                        .home_file = std::string(recorded.home_file)});
    } catch (const Error& error) {
      return report(open, recorded.name, error);
    }
    if (found_.size() == kPortion) flush();
  }

  void flush() {
    join_.add(found_);
    found_.clear();
  }

  /// Reports tensors without a record.
  void report_rest() {
    for (const auto& [name, open] : files_) {
      for (std::size_t i = 0; i < open.stored.size(); ++i) {
        if (open.is_told[i] && open.placed[i] >= open.stored[i].n_bytes) continue;
        report(open, open.stored[i].name,
               Error(ErrorCode::kMismatch,
                     "is not in {} (changed since it was written: run ingot check)",
                     formats::kRecordsName));
      }
    }
  }

 private:
  struct OpenFile {
    std::uint32_t index = 0;
    std::vector<StoredTensor> stored;
    std::vector<bool> is_told;
    std::vector<std::uint64_t> placed;  // bytes of each that records have told of
    std::size_t next = 0;               // records mostly follow the order of the file
    std::unordered_map<std::string_view, std::size_t> by_name;  // once one does not

    std::optional<std::size_t> find(std::string_view name) {
      if (next < stored.size() && stored[next].name == name) return next++;
      if (by_name.empty()) {
        by_name.reserve(stored.size());
        for (std::size_t i = 0; i < stored.size(); ++i) by_name.emplace(stored[i].name, i);
      }
      const auto at = by_name.find(name);
      if (at == by_name.end()) return std::nullopt;
      next = at->second + 1;
      return at->second;
    }
  };

  void report(const OpenFile& open, std::string_view tensor, Error error) {
    faults_.add(error.in_file(join_.file(open.index).facts.name).in_tensor(tensor));
  }

  // The stretch as a stored tensor of its own.
  static StoredTensor piece_of(const StoredTensor& stored, const RecordedSlice& recorded) {
    StoredTensor piece = stored;
    piece.name = recorded.name;
    piece.shape = recorded.piece_shape;
    const auto n_bytes = formats::byte_count(stored.dtype, piece.shape);
    if (!n_bytes || *n_bytes > stored.n_bytes ||
        recorded.piece_offset > stored.n_bytes - *n_bytes) {
      throw Error(
          ErrorCode::kMismatch,
          "is no stretch of '{}' as it is here (changed since it was written: run ingot check)",
          stored.name);
    }
    piece.n_bytes = *n_bytes;
    piece.offset += recorded.piece_offset;
    return piece;
  }

  // Records that say the same share a slice, and tensors of one shape a kind.
  std::uint32_t kind_of(const StoredTensor& stored, const SliceRecord* slice) {
    const std::tuple key(slice, stored.dtype, stored.shape);
    const auto known = kinds_.find(key);
    if (known != kinds_.end()) return known->second;
    const std::uint32_t kind = join_.kind(place_slice(stored.dtype, stored.shape, slice));
    kinds_.emplace(key, kind);
    return kind;
  }

  SliceJoin& join_;
  const WholeName& whole_name_;
  ErrorList& faults_;
  const std::set<std::string, std::less<>>& constants_;
  std::map<std::string, OpenFile, std::less<>> files_;
  std::map<std::tuple<const SliceRecord*, formats::DType, formats::Shape>, std::uint32_t> kinds_;
  std::vector<FoundSlice> found_;
};

}  // namespace

void read_recorded_slices(const std::filesystem::path& records, const Hash128& expected,
                          const std::function<void(const RecordedSlice&)>& take) {
  const std::string path = records.string();
  // A model has hundreds of thousands of records, which tell of a few hundred kinds of slices.
  std::map<std::string, SliceRecord, std::less<>> slices;  // by text
  const auto parsed = [&](const Json& slice, std::string_view where) -> const SliceRecord* {
    if (slice.is_null()) return nullptr;
    std::string text = slice.dump();
    auto known = slices.find(text);
    if (known == slices.end())
      known = slices.emplace(std::move(text), formats::parse_slice_record(slice, where)).first;
    return &known->second;
  };
  std::uint64_t n_lines = 0;
  const Hash128 hash = formats::read_zstd_lines(records, [&](std::string_view line) {
    const std::string where = fmt::format("{} line {}", path, ++n_lines);
    RecordEvents events;
    formats::parse_json_events(line, where, events);
    if (!events.is_record) throw Error(ErrorCode::kCorrupt, "is no record").in_file(where);
    for (const RecordEvents::Entry& entry : events.entries) {
      if (entry.name.empty() || entry.file.empty())
        throw Error(ErrorCode::kCorrupt, "has an output without name or file").in_file(where);
      RecordedSlice recorded{
          .name = entry.name,
          .file = entry.file,
          .slice = parsed(entry.slice, where),
          .home_file = entry.home_file.empty() ? events.home_file : entry.home_file};
      if (!entry.piece.is_null()) {
        const formats::JsonFields piece(entry.piece, where, "piece");
        recorded.piece_of = piece.text("of");
        recorded.piece_offset = piece.number("offset");
        const Json shape = {{"shape", entry.shape}};
        recorded.piece_shape = formats::JsonFields(shape, where).numbers("shape");
      }
      take(recorded);
    }
  });
  if (hash != expected) {
    throw Error(ErrorCode::kMismatch,
                "holds {}, the manifest promises {} (one of the two was changed)", hash.hex(),
                expected.hex())
        .in_file(path);
  }
}

std::vector<StoredTensor> read_stored(SliceJoin& join, std::uint32_t file) {
  const formats::WeightsFile& weights = join.file(file);
  const formats::WeightsHeader raw = formats::read_weights_header(weights);
  formats::SafetensorsHeader header =
      formats::parse_safetensors_header(raw.bytes, raw.file_bytes, weights.facts.name);
  join.set_facts(file, header.file_bytes, header.data_start);
  return std::move(header.tensors);
}

void add_recorded(SliceJoin& join, std::span<const SliceFile> files,
                  const std::filesystem::path& directory, const Hash128& records_hash,
                  const WholeName& whole_name, ErrorList& faults,
                  const std::set<std::string, std::less<>>& constants) {
  if (files.empty()) return;
  Placing placing(join, whole_name, faults, constants);
  for (const SliceFile& file : files) placing.open(file);
  try {
    read_recorded_slices(directory / formats::kRecordsName, records_hash,
                         [&](const RecordedSlice& recorded) { placing.place(recorded); });
  } catch (const Error& error) {
    faults.add(error);
    return;
  }
  placing.flush();
  placing.report_rest();
}

void collect_parallel(std::size_t count, std::size_t threads, ErrorList& faults,
                      const std::function<void(std::size_t, ErrorList&)>& body) {
  std::vector<ErrorList> lists(count);
  parallel_for(count, threads, [&](std::size_t i) {
    try {
      body(i, lists[i]);
    } catch (const Error& error) {
      lists[i].add(error);
    }
  });
  for (const ErrorList& list : lists) {
    for (const Error& error : list.errors()) faults.add(error);
  }
}

}  // namespace ingot::shard
