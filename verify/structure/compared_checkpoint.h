#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "check/rules/loader_rules.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/family/families.h"
#include "formats/records/manifest.h"
#include "shard/join/source.h"

namespace ingot::verify {

/// One of the two checkpoints that are compared: any directory that ingot reads, slices joined, or
/// one weights file.
struct ComparedCheckpoint {
  std::filesystem::path directory;
  formats::Checkpoint model;
  std::optional<formats::Manifest> manifest;  ///< ingot.json of the directory, where it has one
};

/// The family under which a checkpoint is read: the one given, else that under which it was
/// converted; empty: config.json says.
std::string family_of(std::string_view given, const std::filesystem::path& directory,
                      const std::optional<formats::Manifest>& manifest);

/// Opens it under family_of(the one in the options). Throws as shard::open_source does.
ComparedCheckpoint open_compared(const std::filesystem::path& directory,
                                 shard::SourceOptions options);

/// The weights and bytes of a scheme.
struct SchemeShare {
  std::string scheme;
  std::uint64_t tensors = 0, elements = 0, bytes = 0;  ///< bytes of all parts
  friend bool operator==(const SchemeShare&, const SchemeShare&) = default;
};

/// The facts about a checkpoint in a report. No path and no time.
struct CheckpointFacts {
  std::string name;  ///< last component of the directory
  std::string family, dialect;
  std::string layout;    ///< "hf", "ranks", "deepseek-mp" or "vllm-sharded"
  std::string topology;  ///< "tp 2, ep 4" of slices, else empty
  std::string made_by;   ///< "ingot 0.1.0" of a directory with a manifest, else empty
  /// XXH3-128 in hex over every stored tensor's name, dtype, shape and file size: which checkpoint
  /// this was, without reading its weights.
  std::string fingerprint;
  std::uint64_t tensors = 0, files = 0, bytes = 0;
  std::uint64_t static_inputs = 0;   ///< weights with a stored scale of their activations
  std::vector<SchemeShare> schemes;  ///< shares of schemes, by bytes, descending
  /// Kind of its coarsest linears, which decides what is expected of its layers: "plain", "int8",
  /// "int8-static" (one scale for all tokens' activations), "fp8", "nvfp4-experts" (NVFP4 only in
  /// MLPs and experts, activations not quantized) or "4-bit".
  std::string kind;
  friend bool operator==(const CheckpointFacts&, const CheckpointFacts&) = default;
};
CheckpointFacts checkpoint_facts(const ComparedCheckpoint& side);

/// Weights that one scheme holds in the source and one in the output.
struct SchemeChange {
  std::string from, to;            ///< schemes; the same where none changed
  std::vector<std::string> roles;  ///< roles of the weights, by bytes in the source, descending
  std::uint64_t tensors = 0, source_bytes = 0, output_bytes = 0;  ///< bytes of all parts
  friend bool operator==(const SchemeChange&, const SchemeChange&) = default;
};
/// Changes of scheme of the weights that both have, only from headers: by bytes in the source,
/// descending.
std::vector<SchemeChange> scheme_changes(const formats::Checkpoint& source,
                                         const formats::Checkpoint& output);

}  // namespace ingot::verify
