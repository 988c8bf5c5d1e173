#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <set>
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
  std::string from, to;            ///< schemes before and after, which may be equal
  std::vector<std::string> roles;  ///< roles of the weights, by bytes in the source, descending
  std::uint64_t tensors = 0, source_bytes = 0, output_bytes = 0;  ///< bytes of all parts
  friend bool operator==(const SchemeChange&, const SchemeChange&) = default;
};
/// Changes of scheme of the weights that both have, only from headers: by bytes in the source,
/// descending.
std::vector<SchemeChange> scheme_changes(const formats::Checkpoint& source,
                                         const formats::Checkpoint& output);

/// The search of --importance: errors count by the columns that they are in.
inline constexpr std::string_view kWeightedSearch = "weighted";
/// The search of --gptq: codes make up for what others of their row lost.
inline constexpr std::string_view kCarryingSearch = "gptq";

/// The requests to the conversion that made an output, by its manifest. They decide what a right
/// output is; how near the output comes to it, and whether that is enough, is never taken from
/// there.
struct Wanted {
  bool is_recorded = false;  ///< requests are in a manifest; false: all that follows is assumed
  /// "amax", "4over6", "mse", "signed", "weighted" by --importance, or "gptq"; empty:
  /// unknown.
  std::string search = {};
  /// --gptq: the tensors whose records say that errors of columns were carried on; nullopt: there
  /// are no records, and all that can be so are taken for it.
  std::optional<std::set<std::string, std::less<>>> carried = {};
  std::string fp8_grid = {};      ///< "amax" or "ue8m0"; empty: the source's
  std::string activations = {};   ///< "weight-only", "dynamic" or "static"; empty: the source's
  bool is_repair = false;         ///< false statements about the source are mended
  bool via_bf16 = false;          ///< values are cast to BF16 before they are encoded
  bool has_given_scales = false;  ///< scales of FP8 blocks and INT4 groups are from a release
  /// The dtype that the source's config says, where weights were saved in more bits than that; not
  /// by the manifest.
  std::optional<formats::SchemeId> narrower = {};
  /// A rule of a plain scheme, of the user or, in a family without roles, of --to.
  struct PlainRule {
    std::string selector, scheme;
    bool is_default = false;
  };
  std::vector<PlainRule> plain_rules = {};

  /// True if codes of the tensor may be off by more than rounding, to make up for others.
  [[nodiscard]] bool carries_errors(const formats::LogicalTensor& output) const;
  /// True if a rule asks for this plain scheme, and names the tensor or its role if that has more
  /// bits; or if the source's config says that the tensor has the scheme.
  [[nodiscard]] bool narrows(const formats::LogicalTensor& tensor, formats::SchemeId to) const;
  /// For a report: the options that weights are judged by, or that none was known, and the
  /// assumption.
  [[nodiscard]] std::string sentence() const;
};

Wanted wanted_of(const std::optional<formats::Manifest>& manifest);
/// Returns Wanted::carried of a side, by the records next to its manifest. Throws kMismatch where
/// the manifest names other records.
std::optional<std::set<std::string, std::less<>>> carried_tensors(const ComparedCheckpoint& side);

}  // namespace ingot::verify
