#pragma once

#include <chrono>
#include <filesystem>
#include <string>

#include "formats/json/json.h"

// The class of a model, as an installed transformers knows it.

namespace ingot::cli {

/// A folder for files of this process, which goes with it.
class WorkFolder {
 public:
  WorkFolder();
  ~WorkFolder();
  WorkFolder(const WorkFolder&) = delete;
  WorkFolder& operator=(const WorkFolder&) = delete;
  [[nodiscard]] const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// Runs class_model.py under a Python interpreter: what it prints, and in `folder` what it makes.
/// It reads this config.json, no other file of the checkpoint, and runs none of its code. Where the
/// program is missing, fails or takes longer than the limit, `why` says so.
formats::Json ask_class(const std::string& program, const std::filesystem::path& config,
                        const std::filesystem::path& folder, std::chrono::seconds limit);

}  // namespace ingot::cli
