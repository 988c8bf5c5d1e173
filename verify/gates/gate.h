#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::verify {

/// How closely two checkpoints are compared. Each level can be asked for by itself.
enum class Level : std::uint8_t {
  kStructure,  ///< names, shapes, schemes, scales, config, lists, side files, hashes, loader rules
  kWeights,    ///< every value, decoded
  kLayers,     ///< hidden states after every layer, routing, logits
  kGreedy,     ///< the tokens that both generate
  kDraft,      ///< the drafts of their MTP layers, against the likeliest token of each
};

/// A row per level.
struct LevelFacts {
  Level level;
  std::string_view name;     ///< word of --levels
  std::string_view summary;  ///< one line for --help and docs
  bool runs_model = false;
};

std::span<const LevelFacts> levels();
std::string_view level_name(Level level);
bool runs_model(Level level);
/// `structure,weights`; "all" means every level (draft where both sides have an MTP layer).
/// kInvalidArgument for an unknown or empty word. Ascending, without repetition.
std::vector<Level> parse_levels(std::string_view text);

struct Report;
struct TensorWeights;

enum class Bound : std::uint8_t { kAtLeast, kAtMost };

/// A quantity that can be gated; a row in a table.
struct Metric {
  std::string_view name;  ///< "weights.cosine"
  Bound bound;            ///< good side of a limit
  std::string_view summary;
  /// Calls `see(value, class, subject)` for every value that the report holds: class is the scheme
  /// ("nvfp4") or kind ("nvfp4-experts"), empty where there is one for all; subject names tensor,
  /// layer or prompt.
  void (*values)(const Report& report,
                 const std::function<void(double value, std::string_view group,
                                          const std::string& subject)>& see);
  /// For a metric with one value per tensor, in their order: the default limit of a tensor whose
  /// few groups say little of a mean. Null: the same for all.
  double (*limit_of)(double limit, const TensorWeights& tensor) = nullptr;
};
std::span<const Metric> metrics();
const Metric* find_metric(std::string_view name);

/// One demand. An empty group means every group that has no demand of its own from the same or a
/// later origin.
struct Gate {
  std::string metric, group;
  Bound bound = Bound::kAtLeast;
  double limit = 0;
  std::string origin;  ///< "default", "--require", or the name of the YAML file
  friend bool operator==(const Gate&, const Gate&) = default;
};

/// A gate and its result.
struct GateResult {
  Gate gate;
  bool passed = true;
  std::uint64_t checked = 0, failed = 0;
  double worst = 0;          ///< the value that is farthest beyond its limit, or nearest to it
  std::string subject = {};  ///< subject of the worst value
  double limit = 0;  ///< limit of the worst value: the gate's, or that of a tensor with few groups
};

/// The gates that a report is evaluated with.
struct Thresholds {
  std::vector<Gate> gates;
  double greedy_gap = 1.0;
};

/// The measured floors of docs/verify.md. `search`: as the manifest has it, or empty.
Thresholds default_thresholds(std::string_view search);
/// The floor of weights.cosine for a scheme of 4 bits that this search chose scales for; 0 for other
/// schemes.
double four_bit_floor(std::string_view scheme, std::string_view search);
/// Adds the gates of a YAML file; they replace defaults of the same metric (and group, where
/// given). A scalar is a limit on the metric's good side, or `">= 0.999"`; a map is by group:
///   weights.cosine: {int8: 0.9999, nvfp4: 0.996}
///   layers.cosine: ">= 0.999"
///   greedy.gap: 0.5
/// kInvalidArgument, naming file and key, for entries that are not understood.
void read_thresholds(const std::filesystem::path& path, Thresholds& thresholds);
/// `--require "layers.cosine>=0.999"`, `--require "weights.cosine[nvfp4]>=0.996"`.
void add_requirement(std::string_view text, Thresholds& thresholds);
/// The defaults, those of a file (an empty path: none), and the requirements; the later counts.
Thresholds make_thresholds(std::string_view search, const std::filesystem::path& file,
                           std::span<const std::string> requirements);

/// Leaves out the default limits of what a model computes, but for values that are not finite: for
/// an output that is to compute something else.
void drop_defaults_of_models(Thresholds& thresholds);

/// Every gate that has something to be checked on in the report, in order of metrics(); a demand
/// that was made by hand and meets nothing fails (`checked` 0).
std::vector<GateResult> judge(const Report& report, const Thresholds& thresholds);

/// For Report::warnings: the text when more than a third of the greedy prompts are inconclusive.
std::optional<std::string> inconclusive_warning(const Report& report);

/// True if the word names a group of the metric's values, or several groups: schemes and their
/// beginnings for weights.*, kinds of checkpoints (CheckpointFacts::kind) for levels that run the
/// model.
bool is_group(std::string_view metric, std::string_view group);

}  // namespace ingot::verify
