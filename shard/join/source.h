#pragma once

#include <filesystem>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::shard {

/// How to open a sliced source.
struct SourceOptions {
  formats::OpenOptions open;
  /// Reading compares every replica (tensors and slices that several ranks hold in files of their
  /// own) with the first; a difference is kMismatch, naming tensor and ranks. For merge and
  /// convert.
  bool compare_replicas = false;
  /// True if the source may be a single weights file (formats::open_weights_file). Commands that
  /// copy side files need a directory.
  bool may_be_file = false;
  /// config.json for shards of layout deepseek-mp that were not made by ingot, and for a single
  /// file (--config).
  std::filesystem::path config;
};

/// Opens whatever holds one model: a checkpoint directory, or a model's folder in the hub's cache
/// (formats::checkpoint_directory); one rank's directory (as the slices that it is), or a sliced
/// directory, whose ranks are joined (docs/records.md, "Sliced checkpoints"): the top directory of
/// layout `ranks`, or model{i}-mp{N}.safetensors. A joined model reads lazily: opening it reads
/// only headers and manifests. Throws, naming directory and remedy, kNotFound for a missing rank;
/// kMismatch for ranks of different jobs, a rank manifest whose hash the top one does not know, a
/// topology that its directories contradict, replicas of different shapes, slices that do not cover
/// the whole.
formats::Checkpoint open_source(const std::filesystem::path& directory,
                                const SourceOptions& options = {});

/// Throws kUnsupported, naming the directory above, for one rank's directory; for all that needs
/// the whole model, as computing with it does.
void require_all_ranks(const formats::Checkpoint& source);

/// True if open_source would join slices.
bool is_sliced(const std::filesystem::path& directory);

}  // namespace ingot::shard
