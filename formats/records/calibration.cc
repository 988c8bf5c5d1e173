#include "formats/records/calibration.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <mutex>
#include <set>

#include <fmt/format.h>

#include "formats/base/chunks.h"
#include "formats/base/error.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"

namespace ingot::formats {

namespace {

constexpr std::uint64_t kCalibrationSchema = 1;
constexpr std::uint64_t kMaxRecordBytes = std::uint64_t{64} << 20;

using HoldsShape = bool (*)(const Shape& shape);

bool is_one(const Shape& shape) {
  return element_count(shape) == 1;
}
bool is_list(const Shape& shape) {
  return shape.size() == 1 && shape[0] > 0;
}
bool is_blocks(const Shape& shape) {
  return shape.size() == 3 && shape[0] > 0 && shape[1] == kMomentBlock && shape[2] == kMomentBlock;
}
bool is_square(const Shape& shape) {
  return shape.size() == 2 && shape[0] > 0 && shape[0] == shape[1];
}

// The statistics, their owners and forms, and the file of a directory that has each; moments are in
// a folder.
struct Statistic {
  std::string_view ending, owner;
  DType dtype;
  std::string_view form;
  HoldsShape holds_shape;
  std::string_view file;
};
constexpr std::array kStatistics = {
    Statistic{kInputMin, "MODULE", DType::kF32, "one F32", is_one, kInputsName},
    Statistic{kInputMax, "MODULE", DType::kF32, "one F32", is_one, kInputsName},
    Statistic{kInputAmax, "MODULE", DType::kF32, "one F32", is_one, kInputsName},
    Statistic{kInputMeanSquare, "MODULE", DType::kF32, "F32 [K]", is_list, kInputsName},
    Statistic{kExpertTokens, "LAYER", DType::kI64, "I64 [E]", is_list, kInputsName},
    Statistic{kExpertSaliency, "LAYER", DType::kF32, "F32 [E]", is_list, kInputsName},
    Statistic{kKeyAmax, "ATTENTION", DType::kF32, "F32 [Hkv]", is_list, kCacheName},
    Statistic{kValueAmax, "ATTENTION", DType::kF32, "F32 [Hkv]", is_list, kCacheName},
    Statistic{kLatentAmax, "ATTENTION", DType::kF32, "one F32", is_one, kCacheName},
    Statistic{kRopeKeyAmax, "ATTENTION", DType::kF32, "one F32", is_one, kCacheName},
    Statistic{kInputBlockMoments, "MODULE", DType::kF32, "F32 [K/16, 16, 16]", is_blocks,
              kBlocksName},
    Statistic{kInputMoments, "MODULE", DType::kF32, "F32 [K, K]", is_square, kMomentsFolder}};

bool is_of_moments(std::string_view name) {
  return name.size() > kMomentsFolder.size() && name.starts_with(kMomentsFolder) &&
         name[kMomentsFolder.size()] == '/' && name.ends_with(kWeightsSuffix);
}

// The part of the table that a file of this name has; nullopt for names that are none.
std::optional<std::string_view> kind_of(std::string_view name) {
  if (is_of_moments(name)) return kMomentsFolder;
  for (const std::string_view known : {kInputsName, kCacheName, kBlocksName}) {
    if (name == known) return known;
  }
  return std::nullopt;
}

// Throws kCorrupt for a tensor that such a file does not have.
const Statistic& statistic_of(const StoredTensor& tensor, std::string_view kind) {
  std::string known;
  for (const Statistic& statistic : kStatistics) {
    if (statistic.file != kind) continue;
    known += fmt::format("{}{}{}", known.empty() ? "" : ", ", statistic.owner, statistic.ending);
    if (tensor.name.size() <= statistic.ending.size() || !tensor.name.ends_with(statistic.ending))
      continue;
    if (tensor.dtype == statistic.dtype && statistic.holds_shape(tensor.shape)) return statistic;
    throw Error(ErrorCode::kCorrupt, "is {} {}, must be {}", dtype_name(tensor.dtype),
                shape_text(tensor.shape), statistic.form)
        .in_tensor(tensor.name);
  }
  throw Error(ErrorCode::kCorrupt, "is none of {}", known).in_tensor(tensor.name);
}

Json shared_json(const SharedInputs& shared) {
  Json json = Json::array();
  for (const std::vector<std::string>& modules : shared) json.push_back(modules);
  return json;
}

SharedInputs parse_shared(const JsonFields& fields, const char* key) {
  SharedInputs shared;
  for (const Json& entry : fields.array(key)) {
    if (!entry.is_array() || entry.size() < 2) fields.refuse(key, "has an entry of fewer than two");
    std::vector<std::string>& modules = shared.emplace_back();
    for (const Json& module : entry) {
      if (!module.is_string()) fields.refuse(key, "has an entry that is no name");
      modules.push_back(module.get<std::string>());
    }
  }
  return shared;
}

Hash128 hash_of(const Fd& file) {
  const std::uint64_t n_bytes = file.size();
  TensorHasher hasher;
  std::vector<std::byte> piece(kPieceBytes);
  for (std::uint64_t at = 0; at < n_bytes; at += kPieceBytes) {
    const auto some = std::span(piece).first(
        static_cast<std::size_t>(std::min<std::uint64_t>(kPieceBytes, n_bytes - at)));
    file.read_exact(some, at);
    hasher.update(some);
  }
  return hasher.finish();
}

Error changed(const std::string& path) {
  return Error(ErrorCode::kCorrupt,
               "is not the file that {} has (damaged or replaced? calibrate again)",
               kCalibrationName)
      .in_file(path);
}

}  // namespace

std::string calibration_text(const CalibrationRecord& record) {
  const auto file_json = [](const CalibrationFile& file) -> Json {
    return {{"name", file.name}, {"bytes", file.n_bytes}, {"hash", file.hash.hex()}};
  };
  Json json;
  json["ingot_calibration"] = kCalibrationSchema;
  json["version"] = record.tool_version;
  json["source"] = record.source.hex();
  json["text"] = record.text.hex();
  json["documents"] = record.documents;
  json["tokens"] = record.tokens;
  json["shrinkage"] = record.shrinkage;
  json["quantized"] = record.quantized.empty() ? Json(nullptr) : Json(record.quantized);
  json["files"] = json_list(record.files, file_json);
  json["shared"] = {{"blocks", shared_json(record.shared_blocks)},
                    {"moments", shared_json(record.shared_moments)}};
  return json.dump(1) + "\n";
}

CalibrationRecord parse_calibration(std::string_view text, std::string_view where) {
  const Json json = parse_json(text, where);
  const JsonFields fields(json, where);
  if (const std::uint64_t schema = fields.number("ingot_calibration");
      schema != kCalibrationSchema) {
    throw Error(ErrorCode::kUnsupported, "has form {}, this version reads {} (use a newer ingot)",
                schema, kCalibrationSchema)
        .in_file(where);
  }
  CalibrationRecord record{
      .tool_version = fields.text("version"),
      .source = fields.hash("source"),
      .text = fields.hash("text"),
      .documents = fields.number("documents"),
      .tokens = fields.number("tokens"),
      .shrinkage =
          fields.optional_number("shrinkage", JsonFields::kAnyNumber).value_or(kUsualShrinkage),
      .quantized = fields.optional_text("quantized").value_or(""),
      .files = {}};
  std::set<std::string> names;
  for (const Json& entry : fields.array("files")) {
    const JsonFields file(entry, where, "files");
    CalibrationFile& one = record.files.emplace_back();
    one = {.name = file.inner_path("name"),
           .n_bytes = file.number("bytes"),
           .hash = file.hash("hash")};
    file.expect_no_more();
    if (!kind_of(one.name)) file.refuse("name", fmt::format("is '{}', no file of ours", one.name));
    if (!names.insert(one.name).second)
      file.refuse("name", fmt::format("is '{}' a second time", one.name));
  }
  const JsonFields shared = fields.child("shared");
  record.shared_blocks = parse_shared(shared, "blocks");
  record.shared_moments = parse_shared(shared, "moments");
  shared.expect_no_more();
  fields.expect_no_more();
  return record;
}

std::uint64_t StatisticTensor::count() const {
  return element_count(shape).value();
}

struct CalibrationStatistics::File {
  Fd file;
  std::optional<Hash128> hash;  // compared by the first read; none: nothing to compare with
  mutable std::once_flag compared;
};

void CalibrationStatistics::add_file(Fd file, std::string_view name, std::optional<Hash128> hash) {
  stamps_.emplace_back(file.path(), file.stamp());
  const std::string path = file.path();
  const auto added = std::make_shared<File>();
  added->file = std::move(file);
  added->hash = hash;
  const auto number = static_cast<std::uint32_t>(files_.size());
  files_.push_back(added);
  ErrorList errors;
  const std::string_view kind = kind_of(name).value();
  for (StoredTensor& tensor : read_safetensors_header(added->file).tensors) {
    try {
      const Statistic& statistic = statistic_of(tensor, kind);
      const std::string owner = tensor.name.substr(0, tensor.name.size() - statistic.ending.size());
      const StatisticTensor& place =
          tensors_[statistic.ending]
              .insert_or_assign(owner, StatisticTensor{.file = number,
                                                       .offset = tensor.offset,
                                                       .dtype = tensor.dtype,
                                                       .shape = std::move(tensor.shape)})
              .first->second;
      if (statistic.ending != kExpertTokens) continue;
      std::vector<std::int64_t> tokens(place.count());
      added->file.read_exact(std::as_writable_bytes(std::span(tokens)), place.offset);
      const auto bad = std::ranges::find_if(tokens, [](std::int64_t n) { return n < 0; });
      if (bad == tokens.end()) continue;
      throw Error(ErrorCode::kCorrupt, "says that expert {} saw {} tokens", bad - tokens.begin(),
                  *bad)
          .in_tensor(tensor.name);
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(path);
  }
}

CalibrationStatistics CalibrationStatistics::open(const std::filesystem::path& path) {
  CalibrationStatistics statistics;
  statistics.path_ = path;
  if (!std::filesystem::is_directory(path)) {
    Fd file = Fd::open_for_reading(path);
    statistics.hash_ = hash_of(file);
    const bool is_cache = path.filename() == kCacheName;
    statistics.add_file(std::move(file), is_cache ? kCacheName : kInputsName, std::nullopt);
    return statistics;
  }
  const Fd record = Fd::open_for_reading(path / kCalibrationName);
  statistics.stamps_.emplace_back(record.path(), record.stamp());
  const std::string text = read_text_file(record.path(), kMaxRecordBytes);
  statistics.hash_ = hash_of(record);
  statistics.record_ = parse_calibration(text, record.path());
  for (const CalibrationFile& file : statistics.record_->files) {
    Fd opened = Fd::open_for_reading(path / file.name);
    if (opened.size() != file.n_bytes) throw changed(opened.path());
    statistics.add_file(std::move(opened), file.name, file.hash);
    if (file.name == kInputsName || file.name == kCacheName)
      statistics.require_intact(*statistics.files_.back());
  }
  for (const auto& [ending, shared] :
       {std::pair{kInputBlockMoments, &CalibrationRecord::shared_blocks},
        {kInputMoments, &CalibrationRecord::shared_moments}}) {
    for (const std::vector<std::string>& modules : (*statistics.record_).*shared) {
      for (std::size_t i = 1; i < modules.size(); ++i)
        statistics.shared_[ending].insert_or_assign(modules[i], modules[0]);
    }
  }
  return statistics;
}

const StatisticTensor* CalibrationStatistics::find(std::string_view owner,
                                                   std::string_view ending) const {
  const auto some = tensors_.find(ending);
  if (some == tensors_.end()) return nullptr;
  auto found = some->second.find(owner);
  if (const auto shared = shared_.find(ending);
      found == some->second.end() && shared != shared_.end()) {
    const auto first = shared->second.find(owner);
    if (first != shared->second.end()) found = some->second.find(first->second);
  }
  return found == some->second.end() ? nullptr : &found->second;
}

void CalibrationStatistics::for_each(
    std::string_view ending,
    const std::function<void(const std::string& owner, const StatisticTensor& tensor)>& visit)
    const {
  const auto some = tensors_.find(ending);
  if (some == tensors_.end()) return;
  for (const auto& [owner, tensor] : some->second) visit(owner, tensor);
}

// A failure leaves the flag as it was: the next read compares again.
void CalibrationStatistics::require_intact(const File& file) const {
  if (!file.hash) return;
  std::call_once(file.compared, [&] {
    if (hash_of(file.file) != *file.hash) throw changed(file.file.path());
  });
}

const CalibrationStatistics::File& CalibrationStatistics::file_of(
    const StatisticTensor& tensor) const {
  const File& file = *files_.at(tensor.file);
  require_intact(file);
  return file;
}

void CalibrationStatistics::read(const StatisticTensor& tensor, std::uint64_t first,
                                 std::span<float> out) const {
  INGOT_CHECK(tensor.dtype == DType::kF32 && first <= tensor.count() &&
              out.size() <= tensor.count() - first);
  file_of(tensor).file.read_exact(std::as_writable_bytes(out),
                                  tensor.offset + first * sizeof(float));
}

std::vector<float> CalibrationStatistics::values(const StatisticTensor& tensor) const {
  std::vector<float> list(tensor.count());
  read(tensor, 0, list);
  return list;
}

std::vector<float> CalibrationStatistics::finite_values(const StatisticTensor& tensor) const {
  std::vector<float> list = values(tensor);
  const auto bad = std::ranges::find_if_not(list, [](float value) { return std::isfinite(value); });
  if (bad == list.end()) return list;
  throw Error(ErrorCode::kCorrupt, "has {} at byte {}", *bad,
              tensor.offset + static_cast<std::uint64_t>(bad - list.begin()) * sizeof(float))
      .in_file(file_of(tensor).file.path());
}

std::vector<std::int64_t> CalibrationStatistics::counts(const StatisticTensor& tensor) const {
  INGOT_CHECK(tensor.dtype == DType::kI64);
  std::vector<std::int64_t> list(tensor.count());
  file_of(tensor).file.read_exact(std::as_writable_bytes(std::span(list)), tensor.offset);
  return list;
}

}  // namespace ingot::formats
