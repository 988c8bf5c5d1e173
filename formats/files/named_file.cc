#include "formats/files/named_file.h"

#include <cerrno>
#include <fstream>
#include <random>
#include <span>
#include <string>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/files/folder.h"
#include "formats/files/hub_cache.h"

namespace ingot {

namespace fs = std::filesystem;

namespace {

// Weights by any name count next to a config.json; names of whole models, of their parts and of
// adapters count by themselves. (Statistics of `ingot calibrate` are a .safetensors file too.)
bool is_model(const fs::path& folder) {
  bool has_weights = false, has_config = false;
  std::error_code failure;
  for (const std::string& name : names_in(folder, failure)) {
    if (name == "ingot.json" || name == ".ingot-partial" || name == "adapter_config.json" ||
        name.ends_with(".safetensors.index.json"))
      return true;
    if (name.ends_with(".safetensors")) {
      if (name.starts_with("model") || name.find("-of-") != std::string::npos) return true;
      has_weights = true;
    }
    has_config = has_config || name == "config.json" || name == "params.json";
    if (has_weights && has_config) return true;
  }
  return false;
}

[[noreturn]] void refuse_place(const fs::path& file, const fs::path& model) {
  throw Error(ErrorCode::kInvalidArgument,
              "lies in the folder of a model, {}, of which it would become a file (name a file in "
              "another folder)",
              model.string())
      .in_file(file.string());
}

bool is_special(const fs::path& file) {
  std::error_code failure;
  const fs::file_type type = fs::status(file, failure).type();
  return type == fs::file_type::character || type == fs::file_type::fifo ||
         type == fs::file_type::socket;
}

}  // namespace

void require_outside_models(const fs::path& file) {
  if (is_special(file)) return;
  const fs::path target = resolved_path(file);
  if (const auto cached = formats::hub_folder_around(target, /*is_whole=*/true))
    refuse_place(file, *cached);
  for (fs::path folder = target.parent_path(); folder.has_relative_path();
       folder = folder.parent_path()) {
    if (is_model(folder)) refuse_place(file, folder);
  }
}

void require_absent_file(const fs::path& file) {
  std::error_code failure;
  if (fs::exists(fs::symlink_status(file, failure))) {
    throw Error(ErrorCode::kExists, "is there already (remove it, or choose another name)")
        .in_file(file.string());
  }
  if (!fs::is_directory(fs::absolute(file).parent_path(), failure))
    throw Error(ErrorCode::kNotFound, "cannot be written (no such folder)").in_file(file.string());
  require_outside_models(file);
}

void write_absent_file(const fs::path& file, std::string_view text) {
  require_absent_file(file);
  const Folder folder = Folder::open(fs::absolute(file).parent_path());
  Fd made = folder.create(file.filename(), O_WRONLY);
  if (!made.valid()) require_absent_file(file);
  try {
    made.write_exact(std::as_bytes(std::span(text)), 0);
    made.sync();
    made.close();
  } catch (...) {
    folder.remove(file.filename());
    throw;
  }
}

void replace_file(const fs::path& file, std::string_view text) {
  if (is_special(file)) {
    std::ofstream out(file, std::ios::binary);
    out << text << std::flush;
    if (!out) throw system_error(errno, "write", file.string());
    return;
  }
  const fs::path target = resolved_path(file);
  const Folder folder = Folder::open(target.parent_path());
  std::random_device random;
  const fs::path staged =
      fmt::format(".{}-{:08x}{:08x}", target.filename().string().substr(0, 64), random(), random());
  Fd made = folder.create(staged, O_WRONLY);
  if (!made.valid()) throw Error(ErrorCode::kExists, "is there already").in_file(made.path());
  try {
    made.write_exact(std::as_bytes(std::span(text)), 0);
    made.sync();
    made.close();
    std::error_code ignored;
    if (const fs::file_status before = fs::status(target, ignored); fs::exists(before))
      fs::permissions(target.parent_path() / staged, before.permissions(), ignored);
    folder.rename(staged, folder, target.filename());
  } catch (...) {
    folder.remove(staged);
    throw;
  }
  sync_directory(target.parent_path());
}

}  // namespace ingot
