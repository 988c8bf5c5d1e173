#pragma once

#include <filesystem>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"

namespace ingot::shard {

/// config.json of the unsliced model, as a rank's manifest remembers it where its own says
/// something else (`slicing`, may be null), else as it stands in `directory`. Without one: the
/// default with
/// `--family generic`, kNotFound with any other.
formats::ModelConfig whole_config(const std::filesystem::path& directory,
                                  const formats::SlicingRecord* slicing,
                                  const formats::OpenOptions& options);

/// The description file of a dialect; null where it has none or none is here.
formats::Json read_description(const std::filesystem::path& directory,
                               const formats::Dialect* dialect);

/// The largest config.json that is read.
inline constexpr std::uint64_t kMaxConfigBytes = 64'000'000;

}  // namespace ingot::shard
