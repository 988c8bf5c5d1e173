#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "convert/budget.h"
#include "convert/compose.h"
#include "convert/convert.h"
#include "convert/output/cache_overlay.h"
#include "convert/recipe/expert_selection.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "library/options/family_learning.h"
#include "library/options/job_options.h"
#include "library/options/target_flags.h"
#include "verify/gates/report.h"

// A conversion as it is asked for: by the command line, and by ingot_plan().

namespace ingot::library {

/// The value of --part that publishes the files of all parts.
inline constexpr std::string_view kJoin = "join";

/// Options of `convert --verify`.
struct GateOptions {
  std::string levels;  ///< empty: publish without being asked
  std::filesystem::path thresholds;
  std::vector<std::string> requirements;
};

/// Options of `ingot prune`, as given; `is_asked`: that command runs.
struct PruneOptions {
  bool is_asked = false;
  std::optional<double> keep;
  std::string by = std::string(convert::kExpertScores[0]);
  std::filesystem::path statistics, keep_map;
  /// Lists of a manifest by which an output is made again, in place of the options.
  std::optional<formats::KeptExperts> list;
  std::optional<bool> measure;  ///< --measure; nullopt: where the whole model fits in memory
  std::filesystem::path text;   ///< --text
};

/// Options of a conversion, as given.
struct ConvertOptions {
  std::string input, family, part;
  FileFlags files;
  std::optional<double> bits;  ///< --bits
  std::string bits_from;       ///< --bits-from
  TargetFlags target;
  bool accept_family = false;   ///< --accept-family
  bool kv_scales_only = false;  ///< --kv-scales-only: no conversion, write_kv_overlay()
  /// `ingot compose`: target.recipe_file names the sources, and `input` becomes the base's path.
  bool composes = false;
  std::vector<std::string> sources;  ///< --source NAME=DIR of a recipe
  /// Directories of the recipe by their names; set by read_conversion().
  std::map<std::string, std::filesystem::path> directories;
  PruneOptions prune;
  SlicingFlags slicing;
  GateOptions gate;

  /// The family that --family names; empty: none, or one that is proposed.
  [[nodiscard]] std::string named_family() const {
    return family == kAutoFamily ? std::string() : family;
  }
};

/// Declares those that decide which experts the output has.
void declare_pruning(FlagTable& table, ConvertOptions& options);
/// Declares those that decide which tensors the output has.
void declare_target(FlagTable& table, ConvertOptions& options);
/// Declares all other options; `job` has those of declare_job_options().
void declare_rest(FlagTable& table, ConvertOptions& options, JobOptions& job);

/// The meaning of the options, before the source is opened.
struct ConversionRequest {
  convert::Recipe recipe;
  std::optional<convert::Composition> composition = {};  ///< the sources of a recipe of several
  convert::PlanOptions plan;
  /// Settings of all gates of the job where runs that it continues added some; else null.
  formats::JsonValue earlier_gates;
  /// The source under its family, where it is opened without one, to be copied as it is stored.
  std::shared_ptr<const formats::Checkpoint> meaning = nullptr;
};
/// Throws kInvalidArgument for options that are not understood or contradict each other.
ConversionRequest read_target(const ConvertOptions& options);
/// Reads the options of a conversion, and completes those of its job.
ConversionRequest read_conversion(ConvertOptions& options, JobOptions& job);

/// A plan, and its source.
struct Conversion {
  std::shared_ptr<const formats::Checkpoint> source;
  /// The source under its family, where `source` is without one; else null.
  std::shared_ptr<const formats::Checkpoint> meaning = nullptr;
  convert::Plan plan;
  std::optional<convert::Budget> budget = {};  ///< choice of --bits
};
/// Opens the source, and makes the plan. `compares_replicas`: as shard::SourceOptions has it.
Conversion plan_conversion(ConvertOptions& options, JobOptions& job, ConversionRequest request,
                           bool compares_replicas);
/// Makes the overlay of --kv-scales-only, and writes it unless this is a dry run.
convert::CacheOverlay write_kv_overlay(const ConvertOptions& options, const JobOptions& job,
                                       bool is_dry_run);
/// Makes the plan for a source that is open. `threads`: for --scales-from, and for the losses of
/// --bits.
Conversion plan_conversion(const ConvertOptions& options, ConversionRequest request,
                           std::shared_ptr<const formats::Checkpoint> opened, std::size_t threads);

/// With --verify: has the output compared with its source, as the adapter of the plan changes it,
/// before anything is published, and calls `judged` with the report and its document, which is kept
/// with the output. The options must outlive the job. Throws kUnsupported for levels that run a
/// model which has no forward pass.
void add_gate(const ConvertOptions& options, JobOptions& job, const convert::Plan& plan,
              std::function<void(const verify::Report&, formats::Json document)> judged);

/// Options of `ingot repair` that decide bytes, as given.
struct RepairOptions {
  std::string input, family, dialect, links = "yes";
  TargetFlags target;  ///< allowances; no other flag of it
};
/// Declares all but the input.
void declare_repair(FlagTable& table, RepairOptions& options);

/// The plan of a repair.
struct Repair {
  Conversion conversion;
  std::string index_fault;  ///< fault of an index that is not of these files; empty: none
};
/// Opens the checkpoint, by its index or, where that is not of its files, by these, and makes the
/// plan. Throws kUnsupported for slices of ranks, and for a dialect that is never written.
Repair plan_repair(const RepairOptions& options, std::size_t threads);

}  // namespace ingot::library
