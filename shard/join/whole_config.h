#pragma once

#include <filesystem>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"

namespace ingot::shard {

/// config.json of the unsliced model.
struct WholeConfig {
  formats::ModelConfig config;
  std::string text;
};

/// That of a file.
WholeConfig read_whole_config(const std::filesystem::path& path);

/// As a rank's manifest remembers it where its own says something else (`slicing`, may be null),
/// in the form of its own, else as it stands in `directory`. Without one: the default with
/// `--family generic`, kNotFound with any other.
WholeConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options);

/// The description file of a dialect; null where it has none or none is here.
formats::Json read_description(const std::filesystem::path& directory,
                               const formats::Dialect* dialect);

}  // namespace ingot::shard
