#include "shard/join/joined_model.h"

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

using formats::Json;

namespace {

constexpr std::uint64_t kMaxConfigBytes = 64'000'000;
constexpr std::uint64_t kMaxDescriptionBytes = 256'000'000;

WholeConfig parsed(std::string text, const std::filesystem::path& where) {
  WholeConfig whole{.config = formats::parse_model_config(text, where.string()), .text = {}};
  whole.text = std::move(text);
  return whole;
}

/// Null where the dialect has none or none is here.
formats::JsonValue read_description(const std::filesystem::path& directory,
                                    const formats::Dialect* dialect) {
  if (dialect == nullptr || dialect->description_file.empty()) return {};
  const std::filesystem::path path = directory / dialect->description_file;
  // Not exists(): a link that leads nowhere is a broken file, not none.
  std::error_code failure;
  if (std::filesystem::symlink_status(path, failure).type() ==
      std::filesystem::file_type::not_found)
    return {};
  Json description = formats::read_json_file(path, kMaxDescriptionBytes);
  if (!description.is_object())
    throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(path.string());
  return description;
}

}  // namespace

WholeConfig read_whole_config(const std::filesystem::path& path) {
  return parsed(read_text_file(path, kMaxConfigBytes), path);
}

WholeConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options) {
  const std::filesystem::path path = directory / formats::kConfigName;
  if (slicing != nullptr && slicing->rank && !slicing->rank->whole_config->is_null()) {
    // The manifest keeps what the file said, the file beside it how it was written.
    formats::JsonForm form;
    if (stamp_of(path)) form = formats::json_form_of(read_text_file(path, kMaxConfigBytes));
    return parsed(formats::json_text(slicing->rank->whole_config, form),
                  directory / formats::kManifestName);
  }
  try {
    return read_whole_config(path);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kNotFound) throw;
    if (options.family == "generic") return {};
    throw Error(ErrorCode::kNotFound, "is missing (fetch it; --family generic goes without)")
        .in_file(path.string());
  }
}

formats::AssembledModel joined_model(const std::filesystem::path& directory, WholeConfig config,
                                     const formats::Dialect* dialect, JoinedModel joined,
                                     bool compare_replicas) {
  formats::AssembledModel model;
  model.directory = directory;
  model.config = std::move(config.config);
  model.config_text = std::move(config.text);
  model.dialect = dialect;
  model.description = read_description(directory, dialect);
  ErrorList faults;
  formats::SideListing beside = formats::list_side_files(directory, faults);
  faults.throw_if_any();
  model.side_files = std::move(beside.files);
  model.remarks = formats::left_out_remarks(beside.left_out);
  model.stored = std::move(joined.stored);
  model.bytes = std::make_unique<JoinedBytes>(std::move(joined.slices), compare_replicas);
  return model;
}

}  // namespace ingot::shard
