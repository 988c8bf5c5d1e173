#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/changes/value_change.h"
#include "verify/compare/comparison.h"
#include "verify/gates/gate.h"
#include "verify/gates/report.h"

namespace ingot::verify {

/// The findings of runs that share the work of a verification. Levels other than structure and
/// weights are not shared.
struct PartLedger {
  check::HashLedger hashes;
  WeightLedger weights;
};

/// The parts that are compared, and how they are judged. A StopScope ends it.
struct VerificationOptions {
  std::vector<Level> levels = {Level::kStructure, Level::kWeights};
  std::string family = {};  ///< family of both sides, as formats::OpenOptions::family
  /// The source that was opened, with the bytes to compare with; null: those of its files.
  std::function<formats::Checkpoint(formats::Checkpoint)> source_bytes = {};
  /// Directories of the checkpoints that a composed output was made of (`ingot compose`), by the
  /// names in its manifest; that of the base is the source.
  std::map<std::string, std::filesystem::path> sources = {};
  /// Editors of the source's values: the adapter that the output has (--lora).
  std::vector<std::shared_ptr<const formats::ValueEditor>> editors = {};
  std::filesystem::path source_config = {},
                        output_config = {};  ///< config.json, as shard::SourceOptions::config
  /// Name of the output in the report, where that is not its directory's.
  std::string output_name = {};
  std::filesystem::path prompts = {};     ///< texts between blank lines; empty: the built-in ones
  std::filesystem::path text = {};        ///< documents on which both are run
  std::filesystem::path reference = {};   ///< recorded activations; of a single checkpoint
  std::filesystem::path thresholds = {};  ///< YAML
  std::vector<std::string> requirements = {};    ///< "metric>=limit"
  std::filesystem::path activation_scales = {};  ///< statistics, as StructureOptions has them
  double sample = 1;
  PartLedger* ledger = nullptr;  ///< ledger of work shared with other runs; null: it is not shared
  bool hashes = true;
  std::size_t greedy_tokens = 20;
  inference::Profile source_profile = inference::Profile::kF32;
  inference::Profile output_profile = inference::Profile::kNative;
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  std::string tool_version = {};
  /// (phase, done, total); bytes of weights, layers, tokens.
  std::function<void(std::string_view, std::uint64_t, std::uint64_t)> progress = {};
  /// The output is run by ranks, of which this process is one and the first leads; null: by this
  /// process, whole. A fault of the output is thrown then, since it stops all ranks.
  inference::Comm* ranks = nullptr;
};

/// Compares two checkpoints. Faults of the output are in the report, never thrown, also where it
/// stops a level: then that level is in Report::not_run, and the report fails. Throws errors that
/// are no faults of the output: a source that cannot be read, options that make no sense, kLimit,
/// kIo, kUnsupported, kInterrupted. With ranks `output` is the directory of the first one, which
/// compares; kInvalidArgument for levels other than layers and greedy, which no single rank can
/// judge.
Report verify_pair(const std::filesystem::path& source, const std::filesystem::path& output,
                   const VerificationOptions& options);

/// Runs on the other ranks while the first one is in verify_pair() with the same options: they run
/// the output with it, each from its own directory.
void follow_verification(const std::filesystem::path& rank, const VerificationOptions& options);

/// Looks at one checkpoint: the perplexity of `text`, activations recorded in `reference`, or both;
/// kInvalidArgument for neither.
Report verify_single(const std::filesystem::path& directory, const VerificationOptions& options);

/// The inputs of compare_outputs().
struct ComparedDirectories {
  std::filesystem::path a, b, reference = {};  ///< the last may be empty
  /// Files config.json, as shard::SourceOptions::config.
  std::filesystem::path a_config = {}, b_config = {}, reference_config = {};
};

/// Compares two outputs of one source at the same levels, over the same prompts and text: each
/// against the reference; without one, B against A, both computed with output_profile. Judges
/// nothing: gates and names in the options have no effect. Throws as verify_pair() does, and all
/// errors that keep a side from being opened or a level from being run.
Comparison compare_outputs(const ComparedDirectories& directories,
                           const VerificationOptions& options);

}  // namespace ingot::verify
