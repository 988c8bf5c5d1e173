#include "delta/stream.h"

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/checkpoint_index.h"
#include "formats/container/safetensors.h"
#include "formats/files/folder.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/zstd_lines.h"
#include "formats/records/manifest.h"

namespace ingot::delta {

namespace fs = std::filesystem;
using formats::Json;
using formats::JsonFields;

namespace {

constexpr std::string_view kVersionPrefix = "weight_v";
constexpr std::uint64_t kMaxDeltaIndexBytes = std::uint64_t{1} << 30, kMaxStateBytes = 65'536;
constexpr std::uint64_t kDeltaRecordSchema = 1;
constexpr std::size_t kMaxRecordedTensors = std::size_t{8} << 20;
// No version follows it.
constexpr std::uint64_t kLastVersion = std::numeric_limits<std::uint64_t>::max();

std::optional<std::uint64_t> number_in(std::string_view digits) {
  std::uint64_t number = 0;
  const auto [end, failure] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (failure != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::optional<std::uint64_t> version_in(std::string_view name) {
  if (!name.starts_with(kVersionPrefix)) return std::nullopt;
  const std::string_view digits = name.substr(kVersionPrefix.size());
  const auto number = number_in(digits);
  // Not two spellings of one version.
  return number && *number != kLastVersion && digits == version_text(*number) ? number
                                                                              : std::nullopt;
}

// A version as a writer of the form has it: a text of digits, or a number, or `v` and digits.
std::uint64_t version_at(const Json& metadata, std::string_view key) {
  const Json& value = formats::json_member(metadata, key);
  std::optional<std::uint64_t> number;
  if (value.is_string()) {
    std::string_view text = value.get_ref<const std::string&>();
    if (text.starts_with('v')) text.remove_prefix(1);
    number = number_in(text);
  } else {
    number = formats::whole_number(value, JsonFields::kAnyNumber);
  }
  if (!number || *number == kLastVersion)
    throw Error(ErrorCode::kCorrupt, "metadata have no number '{}'", key);
  return *number;
}

// True if a checkpoint may get a file of this name from a delta.
bool may_be_extra(std::string_view name) {
  const fs::path path(name);
  if (path.empty() || path.is_absolute() || path != path.lexically_normal()) return false;
  for (const fs::path& part : path) {
    if (part.empty() || part == ".." || part == kSyncFolder || part.string().starts_with(".ingot"))
      return false;
  }
  return !name.ends_with(formats::kWeightsSuffix);
}

void read_delta_files(const formats::CheckpointIndex& index, Version& version) {
  std::vector<std::string> names;
  for (std::string& name : formats::list_file_names(version.directory)) {
    if (name.ends_with(formats::kWeightsSuffix)) names.push_back(std::move(name));
  }
  std::set<std::string> listed;
  for (const auto& [tensor, file] : index.weight_map) listed.insert(file);
  for (const std::string& name : listed) {
    if (!std::ranges::binary_search(names, name)) {
      throw Error(ErrorCode::kNotFound,
                  "is named by the index, but it is not here (not yet published in full?)")
          .in_file(name);
    }
  }
  for (const std::string& name : names) {
    if (!listed.contains(name))
      throw Error(ErrorCode::kMismatch, "is not named by the index").in_file(name);
    Fd file = Fd::open_for_reading(version.directory / name);
    const formats::SafetensorsHeader header = formats::read_safetensors_header(file);
    std::map<std::string_view, std::string_view> sums(header.metadata.begin(),
                                                      header.metadata.end());
    for (const formats::StoredTensor& tensor : header.tensors) {
      if (tensor.dtype != formats::DType::kU8 || tensor.shape.size() != 1) {
        throw Error(ErrorCode::kCorrupt, "is {} {}, a payload is one row of U8",
                    formats::dtype_name(tensor.dtype), formats::shape_text(tensor.shape))
            .in_file(name)
            .in_tensor(tensor.name);
      }
      const auto sum = sums.find(tensor.name);
      const std::size_t n_digits = checksum_row(version.checksum).n_digits;
      if (sum == sums.end() || sum->second.size() != n_digits ||
          sum->second.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
        throw Error(ErrorCode::kCorrupt, "has no checksum of {} digits in __metadata__", n_digits)
            .in_file(name)
            .in_tensor(tensor.name);
      }
      version.tensors.push_back({.name = tensor.name,
                                 .file = static_cast<std::uint32_t>(version.files.size()),
                                 .offset = tensor.offset,
                                 .n_bytes = tensor.n_bytes,
                                 .checksum = std::string(sum->second)});
    }
    version.files.push_back(std::move(file));
  }
  std::ranges::sort(version.tensors, {}, &DeltaTensor::name);
  const auto twice = std::ranges::adjacent_find(version.tensors, {}, &DeltaTensor::name);
  if (twice != version.tensors.end())
    throw Error(ErrorCode::kDuplicate, "is in two files of the delta").in_tensor(twice->name);
  for (const auto& [tensor, file] : index.weight_map) {
    const DeltaTensor* found = version.find(tensor);
    if (found == nullptr ||
        fs::path(version.files[found->file].path()).filename().string() != file) {
      throw Error(ErrorCode::kMismatch, "is not in {}, where the index has it", file)
          .in_tensor(tensor);
    }
  }
  if (index.weight_map.size() != version.tensors.size()) {
    std::set<std::string_view> in_map;
    for (const auto& [tensor, file] : index.weight_map) in_map.insert(tensor);
    const auto stray = std::ranges::find_if(
        version.tensors, [&](const DeltaTensor& tensor) { return !in_map.contains(tensor.name); });
    throw Error(ErrorCode::kMismatch, "is not named by the index").in_tensor(stray->name);
  }
}

// Adds tensors that have the payload of another one.
void add_like(Version& version) {
  std::vector<DeltaTensor> more;
  for (const RecordedTensor& tensor : version.record->tensors) {
    if (tensor.like.empty()) continue;
    const DeltaTensor* payload = version.find(tensor.like);
    const RecordedTensor* other = version.record->find(tensor.like);
    if (payload == nullptr || other == nullptr || version.find(tensor.name) != nullptr ||
        other->base != tensor.base || other->next != tensor.next || !tensor.next ||
        other->dtype != tensor.dtype || other->shape != tensor.shape) {
      throw Error(ErrorCode::kCorrupt, "is like '{}', which has no such payload", tensor.like)
          .in_file(kDeltaRecordName)
          .in_tensor(tensor.name);
    }
    more.push_back(*payload);
    more.back().name = tensor.name;
  }
  if (more.empty()) return;
  std::ranges::move(more, std::back_inserter(version.tensors));
  std::ranges::sort(version.tensors, {}, &DeltaTensor::name);
}

void read_extra(Version& version) {
  const fs::path folder = version.directory / kExtraName;
  std::vector<ExtraFile> here;
  if (fs::is_symlink(folder))
    throw Error(ErrorCode::kCorrupt, "is a symbolic link").in_file(kExtraName);
  if (stamp_of(folder)) {
    for (const fs::directory_entry& entry : entries_below(folder)) {
      if (entry.is_directory() && !entry.is_symlink()) continue;
      const std::string name = entry.path().lexically_relative(folder).string();
      if (entry.is_symlink() || !entry.is_regular_file() || !may_be_extra(name)) {
        throw Error(ErrorCode::kCorrupt, "is no file that a delta may put into a checkpoint")
            .in_file((fs::path(kExtraName) / name).string());
      }
      here.push_back({.name = name, .n_bytes = entry.file_size(), .hash = {}});
    }
  }
  std::ranges::sort(here, {}, &ExtraFile::name);
  if (version.record) {
    if (!std::ranges::equal(here, version.record->extra, [](const auto& a, const auto& b) {
          return a.name == b.name && a.n_bytes == b.n_bytes;
        }))
      throw Error(ErrorCode::kMismatch, "holds other files than {} lists", kDeltaRecordName)
          .in_file(kExtraName);
    here = version.record->extra;
  }
  version.extra = std::move(here);
  for (ExtraFile& file : version.extra) file.place = file.name;
}

Json tensor_line(const RecordedTensor& tensor) {
  Json line = {{"name", tensor.name},
               {"dtype", tensor.dtype},
               {"shape", tensor.shape},
               {"base", tensor.base.hex()}};
  if (tensor.next) line["new"] = tensor.next->hex();
  if (!tensor.like.empty()) line["like"] = tensor.like;
  return line;
}

RecordedTensor parse_tensor_line(const Json& json, std::string_view where) {
  const JsonFields fields(json, where);
  RecordedTensor tensor{.name = fields.text("name"),
                        .dtype = fields.text("dtype"),
                        .shape = fields.numbers("shape"),
                        .base = fields.hash("base"),
                        .next = {}};
  if (fields.find("new") != nullptr) tensor.next = fields.hash("new");
  if (fields.find("like") != nullptr) tensor.like = fields.text("like");
  return tensor;
}

void parse_head(const Json& json, std::string_view where, DeltaRecord& record) {
  const JsonFields fields(json, where);
  if (fields.text("tool") != "ingot") fields.refuse("tool", "is not ingot");
  if (fields.number("schema") != kDeltaRecordSchema)
    fields.unsupported("is of another schema (a newer version of ingot made it)");
  record.version = fields.number("version");
  record.base = fields.number("base_version");
  for (const Json& entry : fields.array("extra")) {
    const JsonFields file(entry, where, "extra");
    record.extra.push_back(
        {.name = file.text("name"), .n_bytes = file.number("bytes"), .hash = file.hash("hash")});
  }
  for (const Json& name : fields.array("removed")) {
    if (!name.is_string() || !may_be_extra(name.get_ref<const std::string&>()))
      fields.refuse("removed", "names no file that a delta may remove");
    record.removed.push_back(name.get<std::string>());
  }
}

}  // namespace

bool is_own_record(const std::string& name) {
  const std::string bare = fs::path(name).filename().string();
  return bare == formats::kManifestName || bare == formats::kRecordsName ||
         bare == formats::kVerifyName;
}

std::string version_text(std::uint64_t version) {
  return fmt::format("{:06}", version);
}

std::string version_name(std::uint64_t version) {
  return std::string(kVersionPrefix) + version_text(version);
}

std::vector<std::uint64_t> versions_in(const fs::path& stream) {
  std::vector<std::uint64_t> versions;
  if (!stamp_of(stream)) return versions;
  for (const fs::directory_entry& entry : entries_in(stream)) {
    if (const auto number = version_in(entry.path().filename().string()))
      versions.push_back(*number);
  }
  std::ranges::sort(versions);
  return versions;
}

std::optional<std::uint64_t> state_of(const fs::path& directory) {
  const fs::path path = state_name(directory);
  if (!stamp_of(path)) return std::nullopt;
  const Json state = formats::parse_json(read_text_file(path, kMaxStateBytes), path.string());
  try {
    return version_at(state, "version");
  } catch (Error& error) {
    error.in_file(path.string());
    throw;
  }
}

fs::path state_name(const fs::path& inside) {
  return inside / kSyncFolder / kStateName;
}

std::string state_text(std::uint64_t version) {
  return fmt::format("{{\"version\": \"{}\"}}", version_text(version));
}

const RecordedTensor* DeltaRecord::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors, name, {}, &RecordedTensor::name);
  return at == tensors.end() || at->name != name ? nullptr : &*at;
}

Hash128 write_record(const fs::path& path, const DeltaRecord& record) {
  const Json head = {
      {"schema", kDeltaRecordSchema},
      {"tool", "ingot"},
      {"protocol", kProtocol},
      {"version", record.version},
      {"base_version", record.base},
      {"extra",
       formats::json_list(
           record.extra,
           [](const ExtraFile& file) {
             return Json{{"name", file.name}, {"bytes", file.n_bytes}, {"hash", file.hash.hex()}};
           })},
      {"removed", record.removed}};
  formats::ZstdLineWriter writer(path);
  writer.append(head.dump());
  for (const RecordedTensor& tensor : record.tensors) writer.append(tensor_line(tensor).dump());
  return writer.finish();
}

DeltaRecord read_record(const fs::path& path, const Hash128& expected) {
  DeltaRecord record;
  bool has_head = false;
  const std::string where = path.string();
  const Hash128 hash = formats::read_zstd_lines(path, [&](std::string_view line) {
    const Json json = formats::parse_json(line, where);
    if (!std::exchange(has_head, true)) {
      parse_head(json, where, record);
      return;
    }
    if (record.tensors.size() == kMaxRecordedTensors)
      throw Error(ErrorCode::kLimit, "has more than {} tensors", kMaxRecordedTensors)
          .in_file(where);
    record.tensors.push_back(parse_tensor_line(json, where));
  });
  if (hash != expected) {
    throw Error(ErrorCode::kMismatch,
                "is not the record that the index names (was a file of another delta copied "
                "here?)")
        .in_file(where);
  }
  if (!has_head || !std::ranges::is_sorted(record.tensors, {}, &RecordedTensor::name) ||
      !std::ranges::is_sorted(record.extra, {}, &ExtraFile::name) ||
      std::ranges::adjacent_find(record.tensors, {}, &RecordedTensor::name) != record.tensors.end())
    throw Error(ErrorCode::kCorrupt, "is not in order").in_file(where);
  return record;
}

const DeltaTensor* Version::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(tensors, name, {}, &DeltaTensor::name);
  return at == tensors.end() || at->name != name ? nullptr : &*at;
}

ReadBytes Version::payload(const DeltaTensor& tensor) const {
  return [file = &files[tensor.file], start = tensor.offset](std::uint64_t offset,
                                                             std::span<std::byte> out) {
    file->read_exact(out, start + offset);
  };
}

std::uint64_t Version::n_payload() const {
  std::uint64_t n = 0;
  std::set<std::pair<std::uint32_t, std::uint64_t>> seen;
  for (const DeltaTensor& tensor : tensors) {
    if (seen.emplace(tensor.file, tensor.offset).second) n += tensor.n_bytes;
  }
  return n;
}

void Version::narrow_to(const std::string& folder) {
  const std::string prefix = folder + "/";
  if (is_full) {
    if (!stamp_of(directory / formats::kConfigName) &&
        stamp_of(directory / folder / formats::kConfigName))
      directory /= folder;
    return;
  }
  const auto is_of = [&](const std::string& name) { return name.starts_with(prefix); };
  if (!record || std::ranges::none_of(record->tensors, is_of, &RecordedTensor::name)) return;
  const auto narrow = [&](auto& list) {
    std::erase_if(list, [&](const auto& entry) { return !is_of(entry.name); });
    for (auto& entry : list) entry.name.erase(0, prefix.size());
  };
  narrow(tensors);
  narrow(record->tensors);
  narrow(record->extra);
  narrow(extra);
  std::erase_if(record->removed, [&](const std::string& name) { return !is_of(name); });
  for (std::string& name : record->removed) name.erase(0, prefix.size());
}

Version open_version(const fs::path& given) {
  const fs::path directory = resolved_path(given);
  Version version;
  version.directory = directory;
  try {
    formats::require_finished_directory(directory);
    const auto number = version_in(directory.filename().string());
    if (!number) {
      throw Error(ErrorCode::kInvalidArgument,
                  "is neither a stream of versions nor one of them, weight_v000001 and so on");
    }
    version.number = *number;
    const fs::path index_path = directory / formats::kIndexName;
    std::optional<formats::CheckpointIndex> index;
    if (stamp_of(index_path))
      index = formats::parse_checkpoint_index(read_text_file(index_path, kMaxDeltaIndexBytes),
                                              formats::kIndexName);
    const Json& metadata = index ? *index->frame.metadata : Json();
    const Json encoding = formats::json_member(metadata, "delta_encoding");
    if (encoding.is_null()) {
      if (!formats::json_member(metadata, "diff").is_null() ||
          !formats::json_member(metadata, "base_version").is_null())
        throw Error(ErrorCode::kUnsupported,
                    "is a delta without `delta_encoding`: of a form that "
                    "is not read");
      // Above the directories of ranks there is only a manifest.
      if (!stamp_of(directory / formats::kConfigName) &&
          !stamp_of(directory / formats::kManifestName)) {
        throw Error(ErrorCode::kCorrupt,
                    "is neither a delta, whose index has `delta_encoding`, nor a checkpoint, which "
                    "has a config.json");
      }
      version.is_full = true;
      return version;
    }
    const auto text = [&](std::string_view key) { return formats::text_at(metadata, key); };
    const auto found = find_encoding(text("delta_encoding"));
    const ChecksumRow* sum = find_checksum(text("checksum_format"));
    if (!found || sum == nullptr || text("compression_format") != "zstd") {
      throw Error(ErrorCode::kUnsupported,
                  "is a delta of encoding '{}', compression '{}', checksum '{}'; these are read: "
                  "xor and overwrite; zstd; xxh3-128, blake3 and adler32",
                  text("delta_encoding"), text("compression_format"), text("checksum_format"))
          .in_file(formats::kIndexName);
    }
    version.encoding = *found;
    version.checksum = sum->kind;
    version.base = version_at(metadata, "base_version");
    if (const std::uint64_t said = version_at(metadata, "version");
        said != version.number || version.base >= version.number) {
      throw Error(ErrorCode::kMismatch,
                  "says it is version {} on {}, in a directory of version {} (was it renamed?)",
                  said, version.base, version.number)
          .in_file(formats::kIndexName);
    }
    read_delta_files(*index, version);
    if (const std::string hash = text(kRecordKey); !hash.empty()) {
      version.record = read_record(directory / kDeltaRecordName, Hash128::from_hex(hash));
      if (version.record->version != version.number || version.record->base != version.base)
        throw Error(ErrorCode::kMismatch, "is of another version").in_file(kDeltaRecordName);
      add_like(version);
      for (const DeltaTensor& tensor : version.tensors) {
        const RecordedTensor* recorded = version.record->find(tensor.name);
        if (recorded == nullptr || !recorded->next)
          throw Error(ErrorCode::kMismatch, "is changed, which {} does not say", kDeltaRecordName)
              .in_tensor(tensor.name);
      }
      const auto n_changed = std::ranges::count_if(
          version.record->tensors, [](const RecordedTensor& t) { return t.next.has_value(); });
      if (static_cast<std::size_t>(n_changed) != version.tensors.size())
        throw Error(ErrorCode::kMismatch, "names {} changed tensors, and here are {}", n_changed,
                    version.tensors.size())
            .in_file(kDeltaRecordName);
    }
    read_extra(version);
    return version;
  } catch (Error& error) {
    error.in_directory(directory.string());
    throw;
  }
}

}  // namespace ingot::delta
