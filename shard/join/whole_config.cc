#include "shard/join/whole_config.h"

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
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

}  // namespace

WholeConfig read_whole_config(const std::filesystem::path& path) {
  return parsed(read_text_file(path, kMaxConfigBytes), path);
}

WholeConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options) {
  const std::filesystem::path path = directory / formats::kConfigName;
  if (slicing != nullptr && slicing->rank && !slicing->rank->whole_config.is_null()) {
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

Json read_description(const std::filesystem::path& directory, const formats::Dialect* dialect) {
  if (dialect == nullptr || dialect->description_file.empty()) return nullptr;
  const std::filesystem::path path = directory / dialect->description_file;
  // Not exists(): a link that leads nowhere is a broken file, not none.
  std::error_code failure;
  if (std::filesystem::symlink_status(path, failure).type() ==
      std::filesystem::file_type::not_found)
    return nullptr;
  Json description = formats::read_json_file(path, kMaxDescriptionBytes);
  if (!description.is_object())
    throw Error(ErrorCode::kCorrupt, "is not a JSON object").in_file(path.string());
  return description;
}

}  // namespace ingot::shard
