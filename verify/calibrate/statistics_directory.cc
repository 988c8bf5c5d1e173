#include "verify/calibrate/statistics_directory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/json/json_fields.h"
#include "formats/records/manifest.h"

namespace ingot::verify {

namespace fs = std::filesystem;
using formats::CalibrationFile;
using formats::Json;

namespace {

constexpr const char* kStateName = "progress.json";
constexpr const char* kLockName = "lock";
constexpr std::uint64_t kMaxStateBytes = std::uint64_t{64} << 20;

// A kill leaves the old text or the new one.
void replace_text(const fs::path& file, const std::string& text) {
  const std::string unfinished = fmt::format("{}.new", file.string());
  write_text_file(unfinished, text);
  rename_file(unfinished, file);
  sync_directory(file.parent_path());
}

}  // namespace

StatisticsDirectory::StatisticsDirectory(const fs::path& path, bool resumes, const Json& identity)
    : path_(path), identity_(identity.dump()) {
  const fs::path partial = path / formats::kPartialName;
  if (!resumes) {
    if (fs::exists(partial)) {
      throw Error(ErrorCode::kExists,
                  "holds a calibration that was not finished (--resume "
                  "continues it; remove the directory to begin anew)")
          .in_file(path.string());
    }
    require_absent_file(path);
    folder_ = Folder::open(fs::absolute(path).parent_path()).make(path.filename());
  } else {
    if (!fs::is_directory(partial)) {
      throw Error(ErrorCode::kNotFound, "holds no calibration to be continued")
          .in_file(path.string());
    }
    folder_ = Folder::open(path);
  }
  partial_ = folder_->make(formats::kPartialName);
  lock_ = partial_->create(kLockName, O_RDWR);
  if (!lock_.valid()) lock_ = partial_->open(kLockName, O_RDWR);
  if (lock_.try_lock() == LockState::kHeldElsewhere) {
    throw Error(ErrorCode::kExists, "another run calibrates into it").in_file(path.string());
  }
  if (resumes) read_state(identity);
}

StatisticsDirectory::~StatisticsDirectory() {
  if (is_kept_) return;
  try {
    folder_->remove_all(formats::kPartialName);
    std::error_code unused;
    fs::remove(path_, unused);  // only where it is empty
  } catch (const Error&) {
    // The error that brought us here is the one to be told.
  }
}

void StatisticsDirectory::read_state(const Json& identity) {
  const fs::path file = fs::path(partial_->path()) / kStateName;
  if (!fs::exists(file)) return;
  const Json json = formats::parse_json(read_text_file(file, kMaxStateBytes), file.string());
  const formats::JsonFields fields(json, file.native());
  const Json& before = fields.get("identity");
  for (const auto& [key, value] : identity.items()) {
    if (before.is_object() && before.contains(key) && before.at(key) == value) continue;
    throw Error(ErrorCode::kMismatch,
                "the calibration in it was begun with another {} (repeat its options, or remove "
                "the directory to begin anew)",
                key)
        .in_file(path_.string());
  }
  State state{.steps = fields.number("steps"), .states = fields.number("states", 1), .moments = {}};
  for (const Json& entry : fields.array("moments")) {
    const formats::JsonFields one(entry, file.native(), "moments");
    state.moments.push_back(
        {.name = one.inner_path("name"), .n_bytes = one.number("bytes"), .hash = one.hash("hash")});
  }
  earlier_ = std::move(state);
}

void StatisticsDirectory::commit(const State& state) {
  const auto file_json = [](const CalibrationFile& file) -> Json {
    return {{"name", file.name}, {"bytes", file.n_bytes}, {"hash", file.hash.hex()}};
  };
  const Json json = {{"identity", Json::parse(identity_)},
                     {"steps", state.steps},
                     {"states", state.states},
                     {"moments", formats::json_list(state.moments, file_json)}};
  replace_text(fs::path(partial_->path()) / kStateName, json.dump(1) + "\n");
}

bool StatisticsDirectory::is_complete() const {
  return partial_->stamp(formats::kCalibrationName).has_value();
}

void StatisticsDirectory::publish(const formats::CalibrationRecord& record) {
  replace_text(fs::path(partial_->path()) / formats::kCalibrationName,
               formats::calibration_text(record));
  rename_files();
}

void StatisticsDirectory::publish_again() {
  rename_files();
}

void StatisticsDirectory::rename_files() {
  is_kept_ = true;  // what is complete stays, whatever happens
  const fs::path text = fs::path(partial_->path()) / formats::kCalibrationName;
  const formats::CalibrationRecord record =
      formats::parse_calibration(read_text_file(text, kMaxStateBytes), text.string());
  for (const CalibrationFile& file : record.files) {
    if (!partial_->stamp(file.name)) continue;  // another run has renamed it
    const fs::path parent = fs::path(file.name).parent_path();
    if (!parent.empty()) static_cast<void>(folder_->make(parent));
    partial_->rename(file.name, *folder_, file.name);
  }
  if (const fs::path moments = path_ / formats::kMomentsFolder; fs::exists(moments))
    sync_directory(moments);
  sync_directory(path_);
  partial_->rename(formats::kCalibrationName, *folder_, formats::kCalibrationName);
  sync_directory(path_);
  lock_.close();
  folder_->remove_all(formats::kPartialName);
}

}  // namespace ingot::verify
