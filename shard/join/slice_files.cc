#include "shard/join/slice_files.h"

#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string_view>
#include <tuple>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/json_scanner.h"
#include "formats/json/zstd_lines.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

using formats::Json;
using formats::SliceRecord;
using formats::StoredTensor;

namespace {

// Depths of a record: the record, an entry of its `output`, the slice of that.
constexpr std::size_t kRecord = 1, kEntry = 3, kSlice = 4;

// string_view's operator calls memcmp, which takes longer than comparing words that are so short.
template <std::size_t n>
bool is(std::string_view text, const char (&word)[n]) {
  return text.size() == n - 1 && std::memcmp(text.data(), word, n - 1) == 0;
}

// The receiver of a JsonScanner, for one record after another. Keeps `home_file` and the names,
// files and homes of `output`; its slices, pieces and shapes as they are written, since many
// records have the same ones. Everything else passes by. A model cut for 32 ranks has 1.5 million
// records, so that a tree of each, or events that own their values, would take most of the time of
// opening it.
class RecordReader {
 public:
  struct Entry {
    std::string name, file, home_file;
    std::string_view slice, piece, shape;  // JSON within the line, or empty
  };

  // Both throw kCorrupt: for a line that is no JSON, and for one that is no record.
  void read(std::string_view line, std::string_view where) {
    depth_ = n_entries_ = 0;
    home_file.clear();
    field_ = Field::kOther;
    is_record_ = true;
    text_ = nullptr;
    tree_ = nullptr;
    formats::JsonScanner scanner(formats::JsonTokens(line, where), *this);
    scanner_ = &scanner;
    scanner.scan();
    if (!is_record_) throw Error(ErrorCode::kCorrupt, "is no record").in_file(where);
  }

  [[nodiscard]] std::span<const Entry> entries() const {
    return std::span(entries_).first(n_entries_);
  }
  std::string home_file;

  void begin_object() { open('{'); }
  void begin_array() { open('['); }
  void end() {
    if (depth_ == kSlice && field_ == Field::kOutput && tree_ != nullptr)
      *tree_ = std::string_view(tree_begin_, scanner_->position());
    --depth_;
  }

  void key(std::string_view name) {
    if (depth_ == kRecord) {
      field_ = is(name, "output")      ? Field::kOutput
               : is(name, "home_file") ? Field::kHomeFile
                                       : Field::kOther;
    } else if (is_in_entry()) {
      find_member(name);
    }
  }
  void text(std::string_view text) {
    if (depth_ == kRecord && field_ == Field::kHomeFile) {
      home_file = text;
    } else if (is_in_entry() && text_ != nullptr) {
      *text_ = text;
    } else {
      refuse_kept();
    }
  }
  void value(const Json& /*scalar*/) { refuse_kept(); }

 private:
  enum class Field : std::uint8_t { kOther, kHomeFile, kOutput };

  [[nodiscard]] bool is_in_entry() const { return depth_ == kEntry && field_ == Field::kOutput; }

  // For a value of another kind than kept members have.
  void refuse_kept() {
    if (depth_ == 0 || (depth_ == kRecord && field_ != Field::kOther) ||
        (depth_ + 1 == kEntry && field_ == Field::kOutput))
      is_record_ = false;
  }

  void open(char bracket) {
    const bool is_output = depth_ > 0 && field_ == Field::kOutput;
    const bool is_object = bracket == '{';
    ++depth_;
    if (depth_ == kRecord || (depth_ == kEntry && is_output)) is_record_ = is_record_ && is_object;
    if (depth_ == kRecord + 1 && is_output) is_record_ = is_record_ && !is_object;
    if (depth_ == kRecord + 1 && field_ == Field::kHomeFile) is_record_ = false;
    if (depth_ == kSlice && is_output) {
      tree_begin_ = scanner_->position() - 1;
    } else if (depth_ == kEntry && is_output) {
      if (n_entries_ == entries_.size()) entries_.emplace_back();
      Entry& entry = entries_[n_entries_++];
      for (std::string* text : {&entry.name, &entry.file, &entry.home_file}) text->clear();
      entry.slice = entry.piece = entry.shape = {};
      text_ = nullptr;
      tree_ = nullptr;
    }
  }

  // Where an entry keeps a text or a tree that has this key.
  void find_member(std::string_view key) {
    Entry& entry = entries_[n_entries_ - 1];
    text_ = is(key, "name")        ? &entry.name
            : is(key, "file")      ? &entry.file
            : is(key, "home_file") ? &entry.home_file
                                   : nullptr;
    tree_ = is(key, "slice")   ? &entry.slice
            : is(key, "piece") ? &entry.piece
            : is(key, "shape") ? &entry.shape
                               : nullptr;
  }

  std::vector<Entry> entries_;  // used up to n_entries_; the rest is spare
  std::size_t n_entries_ = 0, depth_ = 0;
  bool is_record_ = true;  // an object whose kept members have the right kinds
  Field field_ = Field::kOther;
  std::string* text_ = nullptr;       // text of the key at hand; null: not kept
  std::string_view* tree_ = nullptr;  // tree of the key at hand; null: not kept
  const char* tree_begin_ = nullptr;
  formats::JsonScanner<RecordReader>* scanner_ = nullptr;  // null before and after a read
};

// So that a view finds a string.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const {
    return std::hash<std::string_view>()(text);
  }
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
      std::optional<StoredTensor> piece;
      if (is_piece) piece = piece_of(open.stored[*at], recorded);
      const StoredTensor& stored = piece ? *piece : open.stored[*at];
      open.is_told[*at] = true;
      open.placed[*at] += stored.n_bytes;
      found_.push_back({.name = whole_name_(stored.name),
                        .kind = kind_of(stored, recorded.slice),
                        .file = open.index,
                        .offset = stored.offset,
                        .home_file = std::string(recorded.home_file),
                        .stride = recorded.is_turned ? open.stored[*at].shape[1] : 0});
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
    std::unordered_map<std::string_view, std::size_t> by_name;  // filled on the first other order

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

  // True if rows of this shape, columns of the tensor, can begin at this byte of its first row.
  static bool is_turned_in(const StoredTensor& stored, const formats::Shape& rows,
                           std::uint64_t offset) {
    return stored.shape.size() == 2 && rows.size() == 2 && formats::dtype_bits(stored.dtype) == 8 &&
           rows[1] == stored.shape[0] && offset <= stored.shape[1] &&
           rows[0] <= stored.shape[1] - offset;
  }

  // The stretch as a stored tensor of its own.
  static StoredTensor piece_of(const StoredTensor& stored, const RecordedSlice& recorded) {
    StoredTensor piece = stored;
    piece.name = recorded.name;
    piece.shape = recorded.piece_shape;
    const auto n_bytes = formats::byte_count(stored.dtype, piece.shape);
    const bool is_here =
        n_bytes && *n_bytes <= stored.n_bytes &&
        (recorded.is_turned ? is_turned_in(stored, piece.shape, recorded.piece_offset)
                            : recorded.piece_offset <= stored.n_bytes - *n_bytes);
    if (!is_here) {
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
    const auto key = std::tie(slice, stored.dtype, stored.shape);
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
  std::map<std::tuple<const SliceRecord*, formats::DType, formats::Shape>, std::uint32_t,
           std::less<>>
      kinds_;
  std::vector<FoundSlice> found_;
};

}  // namespace

void read_recorded_slices(const std::filesystem::path& records, const Hash128& expected,
                          const std::function<void(const RecordedSlice&)>& take) {
  const std::string path = records.string();
  // A model has hundreds of thousands of records, which tell of a few hundred kinds of slices.
  std::unordered_map<std::string, SliceRecord, TextHash, std::equal_to<>> slices;  // slices by text
  const auto parsed = [&](std::string_view slice, std::string_view where) -> const SliceRecord* {
    if (slice.empty()) return nullptr;
    auto known = slices.find(slice);
    if (known == slices.end()) {
      const Json json = formats::parse_json(slice, where);
      known = slices.emplace(slice, formats::parse_slice_record(json, where)).first;
    }
    return &known->second;
  };
  std::uint64_t n_lines = 0;
  RecordReader record;
  const std::string at = path + " line ";
  std::string where;
  const Hash128 hash = formats::read_zstd_lines(records, [&](std::string_view line) {
    where = at;
    where += fmt::format_int(++n_lines).c_str();
    record.read(line, where);
    for (const RecordReader::Entry& entry : record.entries()) {
      if (entry.name.empty() || entry.file.empty())
        throw Error(ErrorCode::kCorrupt, "has an output without name or file").in_file(where);
      RecordedSlice recorded{
          .name = entry.name,
          .file = entry.file,
          .slice = parsed(entry.slice, where),
          .home_file = entry.home_file.empty() ? record.home_file : entry.home_file};
      if (!entry.piece.empty()) {
        const Json joined = formats::parse_json(entry.piece, where);
        const formats::JsonFields piece(joined, where, "piece");
        recorded.piece_of = piece.text("of");
        recorded.piece_offset = piece.number("offset");
        recorded.is_turned = piece.boolean("turned", false);
        Json shape = {{"shape", nullptr}};
        if (!entry.shape.empty()) shape["shape"] = formats::parse_json(entry.shape, where);
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
      if (error.code() == ErrorCode::kInterrupted) throw;
      lists[i].add(error);
    }
  });
  for (const ErrorList& list : lists) {
    for (const Error& error : list.errors()) faults.add(error);
  }
}

}  // namespace ingot::shard
