#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/records/manifest.h"

namespace ingot::verify {

/// How to open one of the two checkpoints.
struct SideOptions {
  std::string family = {};            ///< as formats::OpenOptions::family
  std::filesystem::path config = {};  ///< as shard::SourceOptions::config
  std::size_t threads = 1;
};

/// One of the two checkpoints that are compared: any directory that ingot reads, slices joined.
struct Side {
  std::filesystem::path directory;
  formats::Checkpoint model;
  std::optional<formats::Manifest> manifest;  ///< ingot.json of the directory, where it has one
};

/// Throws what shard::open_source throws.
Side open_side(const std::filesystem::path& directory, const SideOptions& options);

/// How many weights and bytes stand in a scheme.
struct SchemeShare {
  std::string scheme;
  std::uint64_t tensors = 0, elements = 0, bytes = 0;  ///< bytes of all parts
  friend bool operator==(const SchemeShare&, const SchemeShare&) = default;
};

/// What a report says of a side. No path and no time.
struct SideFacts {
  std::string name;  ///< last component of the directory
  std::string family, dialect;
  std::string layout;    ///< "hf", "ranks" or "deepseek-mp"
  std::string topology;  ///< "tp 2, ep 4" of slices, else empty
  std::string made_by;   ///< "ingot 0.1.0" of a directory with a manifest, else empty
  /// XXH3-128 in hex over every stored tensor's name, dtype, shape and file size: which checkpoint
  /// this was, without reading its weights.
  std::string fingerprint;
  std::uint64_t tensors = 0, files = 0, bytes = 0;
  std::uint64_t static_inputs = 0;   ///< weights with a stored scale of their activations
  std::vector<SchemeShare> schemes;  ///< by bytes, descending
  /// What is expected of its layers, by its coarsest linears: "plain", "int8", "int8-static" (one
  /// scale for all tokens' activations), "fp8", "nvfp4-experts" (NVFP4 in MLPs and experts alone,
  /// activations not quantized) or "fp4".
  std::string kind;
  friend bool operator==(const SideFacts&, const SideFacts&) = default;
};
SideFacts side_facts(const Side& side);

/// What the manifest says of NVFP4 scale search ("amax", "4over6", "mse", or "weighted" by
/// --importance), or empty.
std::string recorded_nvfp4_search(const Side& side);
/// Whether the manifest says that FP8 block scales were taken from a release (--scales-from).
bool has_recorded_scales(const Side& side);

}  // namespace ingot::verify
