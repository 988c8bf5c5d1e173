#include "convert/output/planned_checkpoint.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "check/rules/loader_rules.h"
#include "convert/output/manifest_writer.h"
#include "convert/output/rank_directories.h"
#include "convert/output/tensor_records.h"
#include "convert/plan/passes.h"
#include "engines/verdicts.h"
#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/container/tensor.h"
#include "formats/family/cache_scales.h"
#include "formats/json/json.h"

namespace ingot::convert {

using check::Finding;
using formats::Checkpoint;
using formats::StoredTensor;

namespace {

// Weights files of one directory, by name.
std::vector<RankFile> files_of_directory(const Plan& plan, std::optional<std::uint32_t> rank) {
  std::vector<RankFile> files;
  if (rank) {
    files = files_of_rank(plan, *rank);
  } else {
    for (std::uint32_t f = 0; f < plan.files.size(); ++f)
      files.push_back({.name = plan.files[f].members[0].path, .file = f, .member = 0});
  }
  // Tensors of the whole refer to the rows of the plan.
  if (plan.is_sliced() && !rank) return files;
  std::sort(files.begin(), files.end(),
            [](const RankFile& a, const RankFile& b) { return a.name < b.name; });
  return files;
}

// Files of which the headers are known, and the bytes where a reader makes them.
class PlannedBytes final : public formats::StoredBytes {
 public:
  PlannedBytes(const Plan& plan, std::vector<RankFile> files, ReadPlanned read)
      : plan_(plan), planned_(std::move(files)), read_(std::move(read)) {
    for (const RankFile& file : planned_) {
      const PlannedFile& row = plan.files[file.file];
      facts_.push_back({.name = file.name, .n_bytes = row.n_bytes, .data_start = row.header_bytes});
    }
  }

  [[nodiscard]] std::span<const formats::SourceFile> files() const override { return facts_; }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    const std::string text = plan_.header(planned_.at(file).file);
    const auto bytes = std::as_bytes(std::span(text));
    return {bytes.begin(), bytes.end()};
  }
  [[nodiscard]] bool has_data(std::uint32_t /*file*/) const override { return false; }
  void read(std::uint32_t /*index*/, const StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    if (read_) return read_(planned_.at(tensor.file).file, tensor.offset + offset, out);
    throw Error(ErrorCode::kInternal, "is planned, it has no bytes to be read")
        .in_tensor(tensor.name);
  }
  void read_file(std::uint32_t file, std::uint64_t /*offset*/,
                 std::span<std::byte> /*out*/) const override {
    throw Error(ErrorCode::kInternal, "is planned, it has no bytes to be read")
        .in_file(facts_.at(file).name);
  }
  void close_file(std::uint32_t /*file*/) const override {}

 private:
  const Plan& plan_;
  std::vector<RankFile> planned_;
  ReadPlanned read_;
  std::vector<formats::SourceFile> facts_;
};

// The tensors that readers of all ranks put together: whole, before anything is retiled or padded,
// in the order of the source. Tensors that a layout leaves out are included, since its readers know
// them.
std::vector<StoredTensor> whole_tensors(const Plan& plan) {
  const auto leaves_out = functions_of(*plan.options.layout).leaves_out;
  std::vector<const PlannedTensor*> order;
  for (const PlannedTensor& planned : plan.tensors)
    if (planned.n_parts > 0) order.push_back(&planned);
  std::ranges::sort(order, {}, &PlannedTensor::tensor);
  std::vector<StoredTensor> stored;
  for (const PlannedTensor* planned : order) {
    for (std::size_t p = 0; p < planned->parts.size(); ++p) {
      const PlannedPart& part = planned->parts[p];
      if (p >= planned->n_parts && (leaves_out == nullptr || !leaves_out(part.part))) continue;
      const PlannedPlace& place =
          plan.first_place(planned->parts[std::min(p, planned->n_parts - 1UL)]);
      stored.push_back({.name = plan.hub_name(*planned, p),
                        .dtype = part.dtype,
                        .shape = plan.part_shape(*planned, p),
                        .file = place.file,
                        .offset = place.offset,
                        .n_bytes = part.n_bytes});
    }
  }
  return stored;
}

// Returns the stored tensors of planned files in the order of read_headers(): by file, then by
// offset.
std::vector<StoredTensor> stored_tensors(const Plan& plan, std::span<const RankFile> files) {
  std::vector<StoredTensor> stored;
  for (std::uint32_t f = 0; f < files.size(); ++f) {
    const PlannedFile& file = plan.files[files[f].file];
    std::uint64_t offset = file.header_bytes;
    for (formats::TensorSpec& spec : header_tensors(plan, file)) {
      const std::uint64_t n_bytes = formats::byte_count(spec.dtype, spec.shape).value();
      stored.push_back({.name = std::move(spec.name),
                        .dtype = spec.dtype,
                        .shape = std::move(spec.shape),
                        .file = f,
                        .offset = offset,
                        .n_bytes = n_bytes});
      offset += n_bytes;
    }
    INGOT_CHECK(offset == file.n_bytes);
  }
  return stored;
}

// Bare names of the files that the directory will have.
std::vector<std::string> file_names(const Plan& plan, std::span<const formats::SourceFile> weights,
                                    bool has_index) {
  std::vector<std::string> names;
  for (const formats::SourceFile& file : weights) names.push_back(file.name);
  for (const formats::SideFile& side : copied_files(plan))
    names.push_back(std::filesystem::path(side.path).begin()->string());
  for (const auto& [name, text] : derived_files(plan)) names.push_back(name);
  if (has_index) names.emplace_back(formats::kIndexName);
  return names;
}

// The record of a tensor that is planned: as many zero hashes as it will have.
TensorResult unhashed(const Plan& plan, const PlannedTensor& planned) {
  TensorResult record{.source = std::vector<Hash128>(plan.stored_of(planned).size()), .output = {}};
  for (std::size_t p = 0; p < planned.n_parts; ++p) {
    std::size_t n = 0;
    for (const PlannedSlice& slice : slices_of(plan, planned, p)) n = std::max(n, slice.hash + 1);
    record.output.emplace_back(n);
  }
  return record;
}

std::shared_ptr<const formats::RankSlices> slices_of_rank(const Plan& plan, std::uint32_t rank) {
  std::vector<TensorResult> items;
  items.reserve(plan.tensors.size());
  for (const PlannedTensor& planned : plan.tensors) items.push_back(unhashed(plan, planned));
  return std::make_shared<const formats::RankSlices>(formats::rank_slices(
      rank_slicing_record(plan, slicing_record(plan, {}), rank), rank_records(plan, rank, items)));
}

// The directories that represent all others for loaders: the whole output, then the directory of
// the first rank of each stage.
std::vector<std::optional<std::uint32_t>> typical_views(const Plan& plan) {
  std::vector<std::optional<std::uint32_t>> ranks = {std::nullopt};
  if (!plan.has_rank_directories()) return ranks;
  const shard::Topology& topology = plan.slicing->topology;
  for (std::uint32_t stage = 0; stage < topology.pp; ++stage)
    ranks.emplace_back(stage * topology.ranks_per_stage());
  return ranks;
}

// The promise of --for, or of a layout that is one engine's own, holds for every weight, also for
// those that no rule chose.
void refuse_what_engine_does_not_load(const Plan& plan,
                                      const std::vector<engines::EngineVerdict>& engines,
                                      ErrorList& errors) {
  const engines::EngineRow* own = engines::find_engine(plan.options.layout->engine);
  for (const engines::EngineVerdict& verdict : engines) {
    const bool is_asked_for = verdict.engine == plan.recipe.choices.engine || verdict.engine == own;
    if (!is_asked_for || verdict.loads ||
        any_matches(plan.recipe.allow.engine_refuses, verdict.tensor))
      continue;
    Error error(ErrorCode::kUnsupported,
                "{} {}: {} (choose another scheme for it with --rule, --allow "
                "'engine-refuses=PATTERN' writes it all the same)",
                verdict.engine->name, engines::failure_text(verdict), verdict.reason);
    errors.add(error.in_tensor(verdict.tensor));
  }
}

// Stored tensors of the source whose numbers the output has, codes left out: scales of codes that
// are kept, and scales of caches.
std::set<std::string_view> kept_scales(const Plan& plan) {
  std::set<std::string_view> names;
  for (const PlannedTensor& planned : plan.tensors) {
    const formats::LogicalTensor& tensor = plan.tensor_of(planned);
    const bool is_kept = planned.action == Action::kRewrap ||
                         (planned.action == Action::kCopy && !planned.joint_global);
    const bool has_scales = formats::scheme_facts(tensor.encoding.scheme).quantized ||
                            formats::is_cache_scale(tensor.rule);
    if (!is_kept || !has_scales) continue;
    tensor.encoding.stored.for_each([&](formats::Part part, std::uint32_t index) {
      const bool is_left_out = part == formats::Part::kInputScale &&
                               planned.action == Action::kRewrap && !planned.keeps_input;
      if (!is_left_out) names.insert(plan.source.stored()[index].name);
    });
  }
  return names;
}

/// The findings of loader rules in the source. A row is asked when the output breaks it, which most
/// outputs do with none.
class SourceFindings {
 public:
  SourceFindings(const Plan& plan, std::size_t threads)
      : plan_(plan), rules_(plan.source, {.threads = threads, .most_bytes = check::kSmallBytes}) {}

  /// Returns the findings about numbers that the output keeps; new ones are right.
  std::vector<Finding> in_kept_scales() {
    const std::set<std::string_view> kept = kept_scales(plan_);
    std::vector<Finding> found;
    if (kept.empty()) return found;
    for (const check::LoaderRule& row : check::loader_rules()) {
      // A repair gives fused tensors one global scale.
      const bool is_mended = row.name == "nvfp4.fused-global" && plan_.counts.rescaled > 0;
      if (!row.reads_values || is_mended) continue;
      for (Finding& finding : rules_.run(row)) {
        if (kept.contains(finding.tensor)) found.push_back(std::move(finding));
      }
    }
    return found;
  }

  /// True if the source has this finding of its output too. A rule names the first of several
  /// tensors, which a copy has too.
  bool has(const Finding& finding) {
    const auto [row, is_new] = tensors_.try_emplace(finding.rule);
    if (is_new) {
      for (Finding& of_source : rules_.run(*check::find_loader_rule(finding.rule)))
        row->second.insert(std::move(of_source.tensor));
    }
    return plan_.is_copy() ? !row->second.empty() : row->second.contains(finding.tensor);
  }

 private:
  const Plan& plan_;
  check::LoaderRules rules_;
  std::map<std::string_view, std::set<std::string>> tensors_;  // by rule
};

std::string remedy_of_weight(const Finding& finding) {
  return fmt::format(
      "ingot convert --rule '{0}=bf16' makes it plain, --allow 'engine-refuses={0}' keeps it; ",
      finding.tensor);
}

}  // namespace

Checkpoint planned_checkpoint(const Plan& plan, std::optional<std::uint32_t> rank,
                              std::size_t threads, ReadPlanned read) {
  INGOT_CHECK(!rank || plan.has_rank_directories());
  const bool is_joined = plan.is_sliced() && !rank;
  std::vector<RankFile> files = files_of_directory(plan, rank);
  formats::Draft model;
  model.stored = is_joined ? whole_tensors(plan) : stored_tensors(plan, files);
  auto bytes = std::make_unique<PlannedBytes>(plan, std::move(files), std::move(read));
  model.directory = plan.source.directory();
  model.has_index = plan.is_sliced() || !plan.json.index.empty();
  model.file_names = file_names(plan, bytes->files(), model.has_index);
  const std::string& config =
      is_joined && !plan.json.whole_config.empty() ? plan.json.whole_config : plan.json.config;
  if (!config.empty()) model.config = formats::parse_model_config(config, formats::kConfigName);
  if (!plan.json.description.empty()) {
    model.description =
        formats::parse_json(plan.json.description, plan.target.dialect->description_file);
  }
  model.side_files = plan.source.side_files();
  if (rank) model.slices = slices_of_rank(plan, *rank);
  model.bytes = std::move(bytes);
  // The source's were judged.
  static const std::vector<Pattern> kAnyUnknown = {Pattern("*")};
  return Checkpoint::assemble(std::move(model), {.family = std::string(plan.source.family().spec),
                                                 .allow_unknown = &kAnyUnknown,
                                                 .threads = threads});
}

Loadable require_loadable(const Plan& plan, std::size_t threads) {
  // More warnings of one conversion would not be read.
  constexpr std::size_t kMaxWarnings = 20;
  const formats::Layout& layout = *plan.options.layout;
  // Slices of an engine's layout are judged as that engine cuts experts for as many ranks.
  const std::uint64_t ranks =
      layout.is_sliced && !layout.engine.empty() ? plan.options.slicing.topology.etp : 1;
  SourceFindings source(plan, threads);
  // A conversion's plan has refused every tensor that no pattern covers, a repair's has not.
  const bool is_repair = plan.recipe.choices.repair != nullptr;
  const auto is_allowed = [&](const Finding& finding) {
    const auto& patterns = plan.recipe.allow.engine_refuses;
    return check::find_loader_rule(finding.rule)->is_allowable &&
           (is_repair ? any_matches(patterns, finding.tensor) : !patterns.empty());
  };
  ErrorList errors;
  Loadable result;
  const auto accept = [&](const Finding& finding, bool is_inherited) {
    if (result.warnings.size() >= kMaxWarnings) return;
    Finding& warning = result.warnings.emplace_back(finding);
    warning.severity = check::Severity::kWarning;
    if (is_inherited) warning.message += " (as in the source)";
  };
  std::set<std::string_view> reported;  // rules that the whole breaks
  for (const std::optional<std::uint32_t> rank : typical_views(plan)) {
    const Checkpoint output = planned_checkpoint(plan, rank, threads);
    // Warnings, and errors that the source has too or that are allowed.
    std::vector<Finding> accepted;
    check::LoaderRules rules(
        output, {.threads = threads, .most_bytes = 0, .tensor_parallel = rank ? 1 : ranks});
    for (const Finding& finding : rules.run()) {
      if (!check::is_about_layout(*check::find_loader_rule(finding.rule), layout)) continue;
      if (!rank) reported.insert(finding.rule);
      if (rank && reported.contains(finding.rule)) continue;
      // No words about a weight mend a form of the weight itself that loaders refuse.
      const bool is_beyond_repair =
          is_repair && check::find_loader_rule(finding.rule)->is_allowable;
      // A whole copy is the source, whose forms this version does not read as loaders do.
      const bool is_inherited = !is_beyond_repair && (plan.is_whole_copy || source.has(finding));
      if (finding.severity == check::Severity::kError && !is_inherited && !is_allowed(finding)) {
        Error error(finding.code, "{} (loader rule {}; {}nothing is published)", finding.message,
                    finding.rule, is_beyond_repair ? remedy_of_weight(finding) : "");
        errors.add(error.in_file(finding.file).in_tensor(finding.tensor));
        continue;
      }
      accepted.push_back(finding);
      accept(finding, is_inherited);
    }
    if (rank) continue;
    for (Finding& finding : source.in_kept_scales()) {
      if (!check::is_about_layout(*check::find_loader_rule(finding.rule), layout)) continue;
      accept(finding, true);
      accepted.push_back(std::move(finding));
    }
    result.engines = engines::believed_verdicts(
        output, rules.engine_input(),
        {.tensor_parallel = ranks, .has_power_of_two_scales = plan.target.power_of_two_scales});
    if (!layout.is_sliced || !layout.engine.empty())
      refuse_what_engine_does_not_load(plan, result.engines, errors);
    check::deny_by_errors(accepted, result.engines);
  }
  errors.throw_if_any();
  return result;
}

}  // namespace ingot::convert
