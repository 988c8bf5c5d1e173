#pragma once

#include <filesystem>
#include <set>
#include <string>

#include "formats/checkpoint/checkpoint.h"
#include "formats/dialect/dialect.h"
#include "shard/join/slice_join.h"

namespace ingot::shard {

/// config.json of the unsliced model.
struct WholeConfig {
  formats::ModelConfig config;
  std::string text;
};

/// Reads the config of a file.
WholeConfig read_whole_config(const std::filesystem::path& path);

/// The config that a rank's manifest remembers where its own says something else (`slicing`, may be
/// null), in the form of its own, else that of `directory`. Without one: the default with `--family
/// generic`; throws kNotFound with any other.
WholeConfig whole_config(const std::filesystem::path& directory,
                         const formats::SlicingRecord* slicing,
                         const formats::OpenOptions& options);

/// The model of `joined` slices of files below `directory`, with the description of the dialect
/// (null: none) and the side files there, except those in `own_folders`.
formats::Draft joined_model(const std::filesystem::path& directory, WholeConfig config,
                            const formats::Dialect* dialect, JoinedModel joined,
                            bool compare_replicas, const std::set<std::string>& own_folders = {});

}  // namespace ingot::shard
