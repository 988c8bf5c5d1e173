#include "shard/join/joined_model.h"

#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"
#include "formats/json/json_form.h"
#include "formats/records/manifest.h"

namespace ingot::shard {

namespace {

WholeConfig parsed(std::string text, const std::filesystem::path& where) {
  WholeConfig whole{.config = formats::parse_model_config(text, where.string()), .text = {}};
  whole.text = std::move(text);
  return whole;
}

}  // namespace

WholeConfig read_whole_config(const std::filesystem::path& path) {
  return parsed(read_text_file(path, formats::kMaxConfigBytes), path);
}

WholeConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options) {
  const std::filesystem::path path = directory / formats::kConfigName;
  if (slicing != nullptr && slicing->rank && !slicing->rank->whole_config->is_null()) {
    // The manifest keeps the values of the original file; the file next to it shows the form of its
    // text.
    formats::JsonForm form;
    if (stamp_of(path))
      form = formats::json_form_of(read_text_file(path, formats::kMaxConfigBytes));
    return parsed(formats::json_text(slicing->rank->whole_config, form),
                  directory / formats::kManifestName);
  }
  auto text = formats::read_config(directory, options.family == "generic");
  return text ? parsed(std::move(*text), path) : WholeConfig{};
}

formats::Draft joined_model(const std::filesystem::path& directory, WholeConfig config,
                            const formats::Dialect* dialect, JoinedModel joined,
                            bool compare_replicas, const std::set<std::string>& own_folders) {
  formats::Draft model;
  model.directory = directory;
  model.file_names = formats::list_file_names(directory);
  // The join has looked for all that the model has.
  model.has_index = true;
  model.config = std::move(config.config);
  model.config_text = std::move(config.text);
  model.dialect = dialect;
  if (dialect != nullptr)
    model.description = formats::read_description(directory, *dialect, /*bare=*/false);
  ErrorList faults;
  formats::SideListing beside = formats::list_side_files(directory, faults);
  faults.throw_if_any();
  const auto is_own = [&](const auto& entry) {
    return own_folders.contains(std::filesystem::path(entry.path).parent_path().string());
  };
  std::erase_if(beside.files, is_own);
  std::erase_if(beside.left_out, is_own);
  model.side_files = std::move(beside.files);
  model.remarks = formats::left_out_remarks(beside.left_out);
  model.stored = std::move(joined.stored);
  model.bytes = std::make_unique<JoinedBytes>(std::move(joined.slices), compare_replicas);
  return model;
}

}  // namespace ingot::shard
