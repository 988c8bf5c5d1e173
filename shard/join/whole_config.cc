#include "shard/join/whole_config.h"

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

using formats::Json;
using formats::ModelConfig;

namespace {

constexpr std::uint64_t kMaxDescriptionBytes = 256'000'000;

}  // namespace

ModelConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options) {
  if (slicing != nullptr && slicing->rank && !slicing->rank->whole_config.is_null()) {
    return formats::parse_model_config(formats::json_text(slicing->rank->whole_config),
                                       (directory / formats::kManifestName).string());
  }
  const std::filesystem::path path = directory / formats::kConfigName;
  try {
    return formats::parse_model_config(read_text_file(path, kMaxConfigBytes), path.string());
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
