#include "shard/join/recorded_slices.h"

#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "formats/json/zstd_lines.h"

namespace ingot::shard {

using formats::Json;
using formats::SliceRecord;

namespace {

// Depths of a record: the record, an entry of its `output`, the slice of that.
constexpr std::size_t kRecord = 1, kEntry = 3, kSlice = 4;

// Keeps `home_file` and the names, files, homes and slices of `output`; everything else passes by.
class RecordEvents final : public formats::JsonEvents {
 public:
  struct Entry {
    std::string name, file, home_file;
    Json slice;
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
      if (member_ == "name") entries.back().name = std::move(scalar.get_ref<std::string&>());
      if (member_ == "file") entries.back().file = std::move(scalar.get_ref<std::string&>());
      if (member_ == "home_file")
        entries.back().home_file = std::move(scalar.get_ref<std::string&>());
    }
  }

  std::vector<Entry> entries;
  std::string home_file;
  bool is_record = true;  ///< an object, of which what is kept has the kinds that it should

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
    } else if (depth_ == kSlice && is_output && member_ == "slice") {
      entries.back().slice = std::move(container);
      building_.push_back(&entries.back().slice);
    } else if (depth_ == kEntry && is_output) {
      entries.emplace_back();
      member_.clear();
    }
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
      take({.name = entry.name,
            .file = entry.file,
            .slice = parsed(entry.slice, where),
            .home_file = entry.home_file.empty() ? events.home_file : entry.home_file});
    }
  });
  if (hash != expected) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("holds {}, the manifest promises {} (one of the two was changed)",
                            hash.hex(), expected.hex()))
        .in_file(path);
  }
}

}  // namespace ingot::shard
