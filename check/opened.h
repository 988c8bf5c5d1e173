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
  std::filesystem::path directory;  ///< or the file; of a model's folder in the hub's cache, the
                                    ///< snapshot
  bool is_sliced = false;           ///< `model` joins the slices of ranks
  std::optional<formats::Manifest> manifest;
  /// nullopt where the faults leave none. Under the family given, or that of the manifest.
  std::optional<formats::Checkpoint> model;
  std::vector<Error> faults;  ///< of the manifest, and of opening; only the first one of slices

  /// True if `model` is what shard::open_source() returns; else that throws.
  [[nodiscard]] bool is_sound() const { return model.has_value() && faults.empty(); }
};

struct FindOptions {
  std::string family = {};  ///< as formats::OpenOptions::family
  std::size_t threads = 1;
  /// As shard::SourceOptions::config.
  std::filesystem::path config = {};
};

/// Opens what can be opened, slices joined. Faults are in the result; throws only as
/// formats::checkpoint_directory() does.
Opened open_found(const std::filesystem::path& given, const FindOptions& options);

/// The same of a directory that holds no slices of others: only what is in it.
Opened open_unsliced(const std::filesystem::path& directory, const FindOptions& options);

}  // namespace ingot::check
