#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::check {

/// A directory, or a single weights file, as it was found: opened once, for all that judge it.
struct Opened {
  /// The directory or the file; for a model's folder in the hub's cache, the snapshot.
  std::filesystem::path directory;
  bool is_sliced = false;  ///< `model` joins the slices of ranks
  std::optional<formats::Manifest> manifest;
  /// Model under the family given, or that of the manifest; nullopt where the faults leave none.
  std::optional<formats::Checkpoint> model;
  std::vector<Error> faults;  ///< faults of the manifest and of opening; of slices the first only

  /// True if `model` is what shard::open_source() returns; else that throws.
  [[nodiscard]] bool is_sound() const { return model.has_value() && faults.empty(); }
};

struct FindOptions {
  std::string family = {};  ///< family, as formats::OpenOptions has it
  std::size_t threads = 1;
  std::filesystem::path config = {};  ///< config.json, as shard::SourceOptions has it
};

/// Opens what can be opened, slices joined. Faults are in the result; throws only as
/// formats::checkpoint_directory() does.
Opened open_found(const std::filesystem::path& given, const FindOptions& options);

/// Opens a directory by itself, whatever slices its manifest lists elsewhere.
Opened open_unsliced(const std::filesystem::path& directory, const FindOptions& options);

}  // namespace ingot::check
