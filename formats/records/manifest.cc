#include "formats/records/manifest.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/container/dtype.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/json/zstd_lines.h"

namespace ingot::formats {
namespace {

constexpr std::uint64_t kSchema = 1;
// Our own files stay far below these; a hostile file meets them before memory does.
constexpr std::uint64_t kMaxManifestBytes = std::uint64_t{256} << 20;
constexpr std::size_t kMaxRecords = std::size_t{8} << 20;

Json file_json(const ManifestFile& file) {
  Json json = {{"name", file.name}, {"bytes", file.n_bytes}, {"hash", file.hash.hex()}};
  if (!file.sha256.empty()) json["sha256"] = file.sha256;
  return json;
}

Json files_json(const std::vector<ManifestFile>& files) {
  Json json = Json::array();
  for (const ManifestFile& file : files) json.push_back(file_json(file));
  return json;
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::vector<ManifestFile> parse_files(const Json& array, std::string_view where, const char* key,
                                      std::set<std::string>& names) {
  std::vector<ManifestFile> files;
  for (const Json& entry : array) {
    const JsonFields fields(entry, where, fmt::format("{}[{}]", key, files.size()));
    ManifestFile file;
    file.name = fields.inner_path("name");
    file.n_bytes = fields.number("bytes");
    file.hash = fields.hash("hash");
    if (const auto sha256 = fields.optional_text("sha256")) {
      if (!is_sha256(*sha256)) fields.refuse("sha256", "is not 64 digits");
      file.sha256 = *sha256;
    }
    fields.expect_no_more();
    if (!names.insert(file.name).second)
      throw Error(ErrorCode::kDuplicate, "lists '{}' twice", file.name).in_file(where);
    files.push_back(std::move(file));
  }
  return files;
}

Json tensor_json(const TensorHash& tensor) {
  // A list of members would be copied twice; a large model has 200,000 of these.
  Json json;
  json["name"] = tensor.name;
  json["file"] = tensor.file;
  json["dtype"] = tensor.dtype;
  json["shape"] = tensor.shape;
  json["hash"] = tensor.hash.hex();
  if (tensor.slice) json["slice"] = slice_record_json(*tensor.slice);
  if (!tensor.home_file.empty()) json["home_file"] = tensor.home_file;
  if (tensor.piece) {
    json["piece"] = {{"of", tensor.piece->of}, {"offset", tensor.piece->offset}};
    if (tensor.piece->is_turned) json["piece"]["turned"] = true;
  }
  return json;
}

std::vector<TensorHash> parse_tensors(const Json& array, std::string_view where, const char* key) {
  std::vector<TensorHash> tensors;
  for (const Json& entry : array) {
    const std::string path = fmt::format("{}[{}]", key, tensors.size());
    const JsonFields fields(entry, where, path);
    TensorHash tensor;
    tensor.name = fields.text("name");
    tensor.file = fields.inner_path("file");
    tensor.dtype = fields.text("dtype");
    if (!find_dtype(tensor.dtype))
      fail_json(where, fmt::format("'{}' is not a dtype", tensor.dtype));
    tensor.shape = fields.numbers("shape");
    tensor.hash = fields.hash("hash");
    if (const Json* slice = fields.find("slice"))
      tensor.slice = parse_slice_record(*slice, fmt::format("{}: {}.slice", where, path));
    tensor.home_file = fields.optional_inner_path("home_file");
    if (const auto piece = fields.optional_child("piece")) {
      tensor.piece = {.of = piece->text("of"),
                      .offset = piece->number("offset"),
                      .is_turned = piece->boolean("turned", false)};
      piece->expect_no_more();
    }
    fields.expect_no_more();
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

Json error_json(const RecordedError& error) {
  // JSON has no infinity; no error at all has no ratio.
  return {{"relative", error.relative_error},
          {"sqnr_db", std::isfinite(error.sqnr_db) ? Json(error.sqnr_db) : Json(nullptr)},
          {"cosine", error.cosine},
          {"max", error.max_error},
          {"elements", error.elements},
          {"saturated", error.saturated},
          {"zeroed", error.zeroed},
          {"blocks", error.blocks},
          {"exact_blocks", error.exact_blocks}};
}

RecordedError parse_error(const Json& json, std::string_view where) {
  const JsonFields fields(json, where, "error");
  RecordedError error;
  error.relative_error = fields.real("relative");
  const Json sqnr = fields.get("sqnr_db");
  error.sqnr_db = sqnr.is_number() ? sqnr.get<double>() : std::numeric_limits<double>::infinity();
  error.cosine = fields.real("cosine");
  error.max_error = fields.real("max");
  error.elements = fields.number("elements");
  error.saturated = fields.number("saturated");
  error.zeroed = fields.number("zeroed");
  error.blocks = fields.number("blocks");
  error.exact_blocks = fields.number("exact_blocks");
  fields.expect_no_more();
  return error;
}

}  // namespace

bool Manifest::drops_mtp() const {
  return text_at(*recipe, "mtp") == "drop";
}

std::vector<std::string> Manifest::allowed(std::string_view kind) const {
  return strings_at(json_member(recipe, "allow"), kind);
}

std::set<std::string, std::less<>> Manifest::constants() const {
  const std::vector<std::string> names = strings_at(engine, "constants");
  return {names.begin(), names.end()};
}

std::string manifest_text(const Manifest& manifest) {
  Json json;
  json["schema"] = kSchema;
  json["tool"] = "ingot";
  json["version"] = manifest.tool_version;
  json["family"] = manifest.family;
  json["dialect"] = manifest.dialect;
  json["layout"] = manifest.layout;
  json["recipe"] = *manifest.recipe;
  json["source"] = *manifest.source;
  json["source_quantization"] = *manifest.source_quantization;
  json["tensors"] = {{"count", manifest.n_tensors},
                     {"records", kRecordsName},
                     {"hash", manifest.records_hash.hex()}};
  json["files"] = files_json(manifest.files);
  json["side_files"] = files_json(manifest.side_files);
  if (manifest.slicing) json["slicing"] = slicing_record_json(*manifest.slicing);
  if (!manifest.unverified.empty()) json["unverified"] = manifest.unverified;
  if (!manifest.index.empty()) json["index"] = manifest.index;
  if (!manifest.engine->is_null()) json["engine"] = *manifest.engine;
  if (!manifest.sources->is_null()) json["sources"] = *manifest.sources;
  return json_text(json);
}

Manifest parse_manifest(std::string_view text, std::string_view where) {
  const Json json = parse_config(text, where);
  const JsonFields fields(json, where);
  // Version first: a newer schema may have anything else.
  if (fields.text("tool") != "ingot") fail_json(where, "was not written by ingot");
  if (const std::uint64_t schema = fields.number("schema"); schema != kSchema) {
    throw Error(ErrorCode::kUnsupported, "has schema {}, this version reads {} (use a newer ingot)",
                schema, kSchema)
        .in_file(where);
  }
  Manifest manifest;
  manifest.tool_version = fields.text("version");
  manifest.family = fields.text("family");
  manifest.dialect = fields.text("dialect");
  manifest.layout = fields.text("layout");
  manifest.recipe = fields.get("recipe");
  manifest.source = fields.get("source");
  if (const Json* quantization = fields.find("source_quantization"))
    manifest.source_quantization = *quantization;

  const JsonFields tensors = fields.child("tensors");
  manifest.n_tensors = tensors.number("count");
  if (tensors.text("records") != kRecordsName) {
    fail_json(where, fmt::format("names records other than {}", kRecordsName));
  }
  manifest.records_hash = tensors.hash("hash");
  tensors.expect_no_more();

  std::set<std::string> names;
  manifest.files = parse_files(fields.array("files"), where, "files", names);
  manifest.side_files = parse_files(fields.array("side_files"), where, "side_files", names);
  if (const Json* slicing = fields.find("slicing"))
    manifest.slicing = parse_slicing_record(*slicing, where);
  manifest.unverified = fields.text("unverified", "");
  manifest.index = fields.text("index", "");
  if (const Json* engine = fields.find("engine")) manifest.engine = *engine;
  if (const Json* sources = fields.find("sources")) manifest.sources = *sources;
  fields.expect_no_more();
  return manifest;
}

std::optional<Manifest> read_manifest(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kManifestName;
  if (std::error_code ignored; !std::filesystem::exists(path, ignored)) return std::nullopt;
  return parse_manifest(read_text_file(path, kMaxManifestBytes), path.string());
}

std::string tensor_record_line(const TensorRecord& record) {
  Json json;
  json["name"] = record.name;
  json["role"] = record.role;
  if (record.layer) json["layer"] = *record.layer;
  if (record.expert) json["expert"] = *record.expert;
  json["action"] = record.action;
  json["from"] = record.from;
  json["to"] = record.to;
  json["source"] = Json::array();
  for (const TensorHash& tensor : record.source) json["source"].push_back(tensor_json(tensor));
  json["output"] = Json::array();
  for (const TensorHash& tensor : record.output) json["output"].push_back(tensor_json(tensor));
  if (record.error) json["error"] = error_json(*record.error);
  if (record.change) {
    json["change"] = {{"survival", record.change->survival},
                      {"cosine", record.change->cosine},
                      {"relative", record.change->relative_change}};
  }
  if (record.original_global) {
    json["original_global"] = {{"value", record.original_global->value},
                               {"divides", record.original_global->divides}};
  }
  if (record.carries_errors) json["gptq"] = true;
  if (!record.home_file.empty()) json["home_file"] = record.home_file;
  if (!record.giver.empty()) json["giver"] = record.giver;
  return json.dump();
}

TensorRecord parse_tensor_record(std::string_view line, std::string_view where) {
  const Json json = parse_json(line, where);
  const JsonFields fields(json, where);
  TensorRecord record;
  record.name = fields.text("name");
  record.role = fields.text("role");
  record.layer = fields.optional_number32("layer");
  record.expert = fields.optional_number32("expert");
  record.action = fields.text("action");
  constexpr std::array<std::string_view, 5> kActions = {"copy", "rewrap", "cast", "quantize",
                                                        "drop"};
  if (std::find(kActions.begin(), kActions.end(), record.action) == kActions.end()) {
    fail_json(where, fmt::format("'{}' is not an action", record.action));
  }
  record.from = fields.text("from");
  record.to = fields.text("to");
  record.source = parse_tensors(fields.array("source"), where, "source");
  record.output = parse_tensors(fields.array("output"), where, "output");
  if (const Json* error = fields.find("error")) record.error = parse_error(*error, where);
  if (const auto change = fields.optional_child("change")) {
    record.change = {.survival = change->real("survival"),
                     .cosine = change->real("cosine"),
                     .relative_change = change->real("relative")};
    change->expect_no_more();
  }
  if (const auto global = fields.optional_child("original_global")) {
    record.original_global = {.value = static_cast<float>(global->real("value")),
                              .divides = global->boolean("divides")};
    global->expect_no_more();
  }
  record.carries_errors = fields.boolean("gptq", false);
  record.home_file = fields.optional_inner_path("home_file");
  record.giver = fields.text("giver", "");
  fields.expect_no_more();
  return record;
}

Hash128 write_tensor_records(const std::filesystem::path& path,
                             std::span<const TensorRecord> records, Durable durable) {
  ZstdLineWriter writer(path, durable);
  for (const TensorRecord& record : records) writer.append(tensor_record_line(record));
  return writer.finish();
}

std::vector<TensorRecord> read_tensor_records(const std::filesystem::path& path,
                                              const Hash128& expected) {
  const std::string file = path.string();
  std::vector<TensorRecord> records;
  const Hash128 hash = read_zstd_lines(path, [&](std::string_view line) {
    if (records.size() == kMaxRecords)
      throw Error(ErrorCode::kLimit, "has more than {} records", kMaxRecords).in_file(file);
    records.push_back(
        parse_tensor_record(line, fmt::format("{} line {}", file, records.size() + 1)));
  });
  if (hash != expected) {
    throw Error(ErrorCode::kMismatch,
                "holds {}, the manifest promises {} (one of the two was changed)", hash.hex(),
                expected.hex())
        .in_file(file);
  }
  return records;
}

Hash128 weights_file_hash(std::span<const std::byte> header, std::span<const Hash128> tensors) {
  TensorHasher hasher;
  hasher.update(header);
  for (const Hash128& hash : tensors) hasher.update(hash.bytes());
  return hasher.finish();
}

}  // namespace ingot::formats
