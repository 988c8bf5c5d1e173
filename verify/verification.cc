#include "verify/verification.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "check/opened.h"
#include "check/rules/finding.h"
#include "formats/base/error.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/config/routing.h"
#include "formats/experts/expert_views.h"
#include "formats/family/families.h"
#include "formats/files/hub_cache.h"
#include "formats/first_layers.h"
#include "formats/json/json.h"
#include "formats/kept_experts.h"
#include "formats/records/manifest.h"
#include "shard/join/source.h"
#include "verify/gates/gate.h"
#include "verify/layers/reference.h"
#include "verify/outputs/prompts.h"
#include "verify/structure/composed_source.h"
#include "verify/weights/changed_source.h"
#include "verify/weights/stack_sides.h"

namespace ingot::verify {
namespace {

// True if an error while the output was read or run is a fact about the output.
bool is_fault(ErrorCode code) {
  switch (code) {
    case ErrorCode::kCorrupt:
    case ErrorCode::kDuplicate:
    case ErrorCode::kUnknownTensor:
    case ErrorCode::kMissingTensor:
    case ErrorCode::kShapeMismatch:
    case ErrorCode::kDtypeMismatch:
    case ErrorCode::kBadScale:
    case ErrorCode::kNonFinite:
    case ErrorCode::kMismatch:
      return true;
    default:
      return false;
  }
}

ComparedCheckpoint open_with(const VerificationOptions& options,
                             const std::filesystem::path& directory,
                             const std::filesystem::path& config) {
  try {
    return open_compared(directory, {.open = {.family = options.family, .threads = options.threads},
                                     .config = config});
  } catch (Error& error) {
    error.in_directory(directory.string());
    throw;
  }
}

check::Opened find_output(const std::filesystem::path& output, const VerificationOptions& options) {
  return check::open_found(
      output,
      {.family = options.family, .threads = options.threads, .config = options.output_config});
}

// Throws where the output records an adapter or edits that are not given, or others than those.
void require_own_changes(const check::Opened& output, const VerificationOptions& options) {
  if (!output.manifest) return;
  const formats::Json& choices = formats::json_member(output.manifest->recipe, "choices");
  for (const std::string_view kind : {"lora", "edits"}) {
    formats::Json given = formats::Json::array();
    for (const auto& editor : options.editors) {
      if (editor->kind() == kind) given.push_back(editor->record());
    }
    const formats::Json& recorded = formats::json_member(choices, kind);
    if (recorded.is_null() ? given.empty() : recorded == given) continue;
    throw Error(given.empty() ? ErrorCode::kUnsupported : ErrorCode::kInvalidArgument,
                given.empty()
                    ? fmt::format("was made with {1}{0}, so its values are not the source's: give "
                                  "{2}, to compare with what they should be",
                                  kind, kind == "lora" ? "--" : "",
                                  kind == "lora" ? "the same --lora, and its other options"
                                                 : "its recipe in place of the source, or "
                                                   "--sources edits=DIR")
                    : fmt::format("was made {}: this {}{} is not what its ingot.json records",
                                  recorded.is_null() ? "without one" : "with another one",
                                  kind == "lora" ? "--" : "directory of ", kind))
        .in_file((output.directory / formats::kManifestName).string());
  }
}

// How a source is seen.
struct SourceView {
  bool has_all_experts = false;  // also those that a pruned output has lost
  bool is_output = false;        // another output, which has what this one was made of
};

bool is_pruned(const check::Opened& output) {
  return output.manifest && !formats::recorded_experts(*output.manifest).empty();
}

// A source, seen with its experts and scales of caches as the output has them; the levels report
// faults of that.
ComparedCheckpoint open_source_of(const std::filesystem::path& source, const check::Opened& output,
                                  const VerificationOptions& options, SourceView view) {
  VerificationOptions of_source = options;
  // An output is read under the family that it was made under.
  if (of_source.family.empty() && formats::family_file_in(source).empty())
    of_source.family = formats::family_file_in(output.directory);
  ComparedCheckpoint from = open_with(of_source, source, options.source_config);
  if (options.source_bytes) from.model = options.source_bytes(std::move(from.model));
  const auto as_in_output = [&](formats::Checkpoint model) {
    if (output.manifest) {
      model = formats::with_layers_as_in(std::move(model), *output.manifest);
      if (!view.has_all_experts)
        model = formats::with_experts_kept_as_in(std::move(model), *output.manifest);
    }
    const bool has_experts = formats::holds_stacks(model) || formats::holds_single_experts(model);
    if (has_experts && output.is_sound())
      model = formats::with_experts_as_in(std::move(model), formats::experts_held(*output.model));
    if (output.is_sound()) {
      model = formats::with_caches_as_in(
          std::move(model),
          {.names = formats::cache_names_of(*output.model),
           .are_made = output.manifest && formats::makes_caches(*output.manifest)});
    }
    return model;
  };
  const bool is_composed =
      output.manifest && !output.manifest->sources->is_null() && !view.is_output;
  if (!is_composed && !view.is_output && !options.sources.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "does not say in its manifest which tensor is of which checkpoint, so that a recipe "
                "or --sources cannot be its source (compare it with the composed output that it "
                "was made of)")
        .in_directory(output.directory.string());
  }
  const auto open = [&](const std::filesystem::path& directory) {
    return open_with(of_source, directory, {}).model;
  };
  from.model =
      is_composed
          ? composed_as_in(std::move(from.model), output, options.sources,
                           {.open = open, .as_in_output = as_in_output, .threads = options.threads})
          : as_in_output(std::move(from.model));
  if (!view.is_output) require_own_changes(output, options);
  if (!options.editors.empty()) {
    from.model = with_changed_values(std::move(from.model), options.editors,
                                     output.is_sound() ? &*output.model : nullptr);
  }
  return from;
}

// A rank sees its own slice, and meets the others where a model runs.
void require_of_ranks(const VerificationOptions& options) {
  const bool runs = std::ranges::all_of(options.levels, [](Level level) {
    return level == Level::kLayers || level == Level::kGreedy;
  });
  if (runs && !options.levels.empty() && options.text.empty() && options.ledger == nullptr) return;
  throw Error(ErrorCode::kInvalidArgument,
              "ranks run the levels layers and greedy; other levels, --text and parts look at all "
              "slices at once: run them in one process (--mpi never)");
}

// The inputs that several outputs of one source share, and the results of its drafts: read and run
// once.
struct SourceInputs {
  std::optional<std::vector<Prompt>> prompts, documents;
  std::size_t n_documents = 0;  // of the text; longer ones are read in windows
  std::optional<std::vector<DraftText>> draft_texts;
  DraftOutcomes drafts;  // the source's outcomes on draft_texts
};

// A source as the two kinds of levels see it: the tensors that the output should have, and the
// model that it is to compute as.
struct ComparedSource {
  ComparedCheckpoint model;
  std::optional<ComparedCheckpoint> whole;  // with the experts that a pruned output has lost
  std::map<std::uint32_t, std::vector<std::uint32_t>> kept = {};  // their numbers in the whole

  [[nodiscard]] const ComparedCheckpoint& run() const { return whole ? *whole : model; }
};

ComparedSource open_source(const std::filesystem::path& source, const check::Opened& output,
                           const VerificationOptions& options, bool is_output = false) {
  ComparedSource from{.model = open_source_of(source, output, options, {.is_output = is_output}),
                      .whole = {}};
  const bool runs = !options.text.empty() || std::ranges::any_of(options.levels, runs_model);
  if (!runs || !is_pruned(output)) return from;
  from.whole =
      open_source_of(source, output, options, {.has_all_experts = true, .is_output = is_output});
  const std::vector<formats::KeptExperts> lists = formats::recorded_experts(*output.manifest);
  // A source that has them no more itself is the whole.
  if (formats::has_numbers_of(from.whole->model.config(), lists.back()))
    from.whole.reset();
  else if (lists.back().n_experts == from.whole->model.config().n_routed_experts)
    from.kept = lists.back().layers;
  return from;
}

// One verification: the state that all levels share, and the report in the making.
class Verification {
 public:
  explicit Verification(const VerificationOptions& options) : options_(options) {
    report_.tool_version = options.tool_version;
    keeps_faults_ = options.ranks == nullptr;
  }
  Verification(const Verification&) = delete;  // inputs_ may be its own
  Verification& operator=(const Verification&) = delete;

  Report pair(const std::filesystem::path& source, const std::filesystem::path& output) {
    check::Opened opened = find_output(output, options_);
    const ComparedSource from = open_source(source, opened, options_);
    const std::optional<ComparedCheckpoint> to = measure(from, output, std::move(opened));
    judge_report(to ? wanted_of(to->manifest).search : "");
    return std::move(report_);
  }

  // Without gates. `side`: the name of the output in progress and errors.
  Report unjudged(const ComparedSource& from, const std::filesystem::path& output,
                  check::Opened opened, std::string side, SourceInputs& inputs) {
    keeps_faults_ = false;
    side_ = std::move(side);
    inputs_ = &inputs;
    measure(from, output, std::move(opened));
    return std::move(report_);
  }

  Report single(const std::filesystem::path& directory) {
    if (options_.text.empty() && options_.reference.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "this checkpoint needs a second one to be compared with, --text or --reference");
    }
    const ComparedCheckpoint side = open(directory, options_.output_config);
    take_facts(side);
    if (!options_.reference.empty()) compare_with_reference(side);
    if (!options_.text.empty()) measure_text(nullptr, side);
    judge_report(wanted_of(side.manifest).search);
    return std::move(report_);
  }

 private:
  // Runs the levels; the output stays open for its judgement.
  std::optional<ComparedCheckpoint> measure(const ComparedSource& source,
                                            const std::filesystem::path& given,
                                            check::Opened output) {
    const ComparedCheckpoint& from = source.model;
    report_.levels = options_.levels;
    note_remarks(from);
    report_.source = checkpoint_facts(from);
    report_.output.name = options_.output_name.empty() ? name_of(given) : options_.output_name;
    if (asked_for(Level::kStructure)) {
      report_.structure = check_structure(
          from, output,
          {.hashes = options_.hashes,
           .config = options_.output_config,
           .family = options_.family,
           .activation_scales = options_.activation_scales,
           .ledger = options_.ledger != nullptr ? &options_.ledger->hashes : nullptr,
           .threads = options_.threads});
      measure_proposal(from.model);
    }
    std::optional<ComparedCheckpoint> to;
    attempt("the output", [&] { to.emplace(compared(std::move(output))); });
    report_.was_read = to.has_value();
    if (to) {
      take_facts(*to);
      if (options_.ranks == nullptr) report_.changes = scheme_changes(from.model, to->model);
      if (source.whole) note_pruned(source, *to);
      compare_tensors(from, *to);
      run_models(source.run(), *to);
    }
    return to;
  }

  // Measures the orientation of stacks, which a family file of the user claims.
  void measure_proposal(const formats::Checkpoint& source) {
    if (source.family().file_hash.empty()) return;
    for (const StackSides& sides : measure_stacks(source)) {
      report_.structure->stacks.push_back(fmt::format("{}: {}", sides.tensor, stack_text(sides)));
      if (!sides.is_told || sides.is_as_row_says) continue;
      check::Finding finding = check::remark(stack_text(sides), "");
      finding.rule = "structure.stack-order";
      finding.tensor = sides.tensor;
      report_.structure->findings.push_back(std::move(finding));
    }
  }

  static std::string name_of(const std::filesystem::path& directory) {
    return std::filesystem::absolute(directory).lexically_normal().filename();
  }

  [[nodiscard]] ComparedCheckpoint open(const std::filesystem::path& directory,
                                        const std::filesystem::path& config) const {
    return open_with(options_, directory, config);
  }

  // Opens an output of which something is wrong again, for its first error.
  [[nodiscard]] ComparedCheckpoint compared(check::Opened output) const {
    const bool takes_config = output.is_sliced || options_.output_config.empty();
    if (!output.is_sound() || !takes_config) return open(output.directory, options_.output_config);
    return {.directory = std::move(output.directory),
            .model = std::move(*output.model),
            .manifest = std::move(output.manifest)};
  }

  static Error no_tokenizer(const formats::Checkpoint& model) {
    return Error(ErrorCode::kNotFound, "is not there, and a text needs a tokenizer")
        .in_file((model.directory() / "tokenizer.json").string());
  }

  [[nodiscard]] bool asked_for(Level level) const {
    return std::find(options_.levels.begin(), options_.levels.end(), level) !=
           options_.levels.end();
  }

  // Runs a level; a fault of the output that stops it is kept.
  template <typename Run>
  void attempt(std::string_view what, const Run& run) {
    try {
      run();
    } catch (const Error& error) {
      if (!keeps_faults_ || !is_fault(error.code())) throw;
      report_.not_run.push_back(fmt::format("{}: {}", what, error.what()));
      report_.faults.push_back(check::finding_of(error));
    }
  }

  [[nodiscard]] std::function<void(std::uint64_t, std::uint64_t)> progress_of(
      std::string_view what) const {
    if (!options_.progress) return {};
    return [this, stage = side_.empty() ? std::string(what) : fmt::format("{}: {}", side_, what)](
               std::uint64_t done, std::uint64_t total) { options_.progress(stage, done, total); };
  }

  [[nodiscard]] RunOptions run_options(std::string_view what) const {
    return {.tokens = options_.greedy_tokens,
            .gap = thresholds("").greedy_gap,
            .source_profile = options_.source_profile,
            .output_profile = options_.output_profile,
            .threads = options_.threads,
            .mem_limit = options_.mem_limit,
            .progress = progress_of(what),
            .ranks = options_.ranks,
            .kept_experts = kept_.empty() ? nullptr : &kept_};
  }

  void note_remarks(const ComparedCheckpoint& side) {
    for (const std::string& remark : side.model.remarks())
      report_.warnings.push_back(fmt::format("{}: {}", side.directory.string(), remark));
  }

  void take_facts(const ComparedCheckpoint& side) {
    note_remarks(side);
    const std::string name = std::move(report_.output.name);
    report_.output = checkpoint_facts(side);
    if (!name.empty()) report_.output.name = name;
  }

  // The loss is measured; only the user can say how much is too much.
  void note_pruned(const ComparedSource& source, const ComparedCheckpoint& to) {
    is_pruned_ = true;
    kept_ = source.kept;
    report_.warnings.push_back(fmt::format(
        "the output has {}{} of {} experts in a layer: its tensors are compared with theirs, and "
        "what it computes with the whole source, without a gate by default",
        formats::has_uneven_experts(to.model.config()) ? "at most " : "",
        to.model.config().n_routed_experts, source.whole->model.config().n_routed_experts));
  }

  void compare_tensors(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    if (asked_for(Level::kWeights)) {
      Wanted wanted = wanted_of(to.manifest);
      wanted.narrower = formats::narrower_dtype(from.model);
      report_.wanted = wanted.sentence();
      attempt("weights", [&] {
        if (wanted.search == kCarryingSearch) wanted.carried = carried_tensors(to);
        report_.weights = compare_weights(
            from.model, to.model,
            {.threads = options_.threads,
             .mem_limit = options_.mem_limit,
             .sample = options_.sample,
             .wanted = std::move(wanted),
             .ledger = options_.ledger != nullptr ? &options_.ledger->weights : nullptr,
             .progress = progress_of("comparing weights")});
      });
    }
  }

  void run_models(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    if (asked_for(Level::kLayers) || asked_for(Level::kGreedy)) run_prompts(from, to);
    if (asked_for(Level::kDraft)) run_drafts(from, to);
    if (!options_.text.empty()) attempt("text", [&] { measure_text(&from, to); });
  }

  const std::vector<Prompt>& prompts_for(const ComparedCheckpoint& from,
                                         const std::optional<inference::Tokenizer>& tokenizer) {
    if (!options_.prompts.empty() && !tokenizer) throw no_tokenizer(from.model);
    if (!inputs_->prompts) {
      inputs_->prompts = options_.prompts.empty()
                             ? built_in_prompts(from.model, tokenizer ? &*tokenizer : nullptr)
                             : read_prompts(options_.prompts, from.model, *tokenizer);
    }
    return *inputs_->prompts;
  }

  const std::vector<Prompt>& documents_for(const formats::Checkpoint& model) {
    if (!inputs_->documents) {
      const std::optional<inference::Tokenizer> tokenizer = open_tokenizer(model);
      if (!tokenizer) throw no_tokenizer(model);
      inputs_->documents = read_documents(options_.text, model, *tokenizer, &inputs_->n_documents);
    }
    return *inputs_->documents;
  }

  void run_prompts(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    shard::require_all_ranks(from.model);
    if (options_.ranks == nullptr) shard::require_all_ranks(to.model);
    const std::optional<inference::Tokenizer> tokenizer = open_tokenizer(from.model);
    const inference::Tokenizer* words = tokenizer ? &*tokenizer : nullptr;
    const std::vector<Prompt>& prompts = prompts_for(from, tokenizer);
    if (asked_for(Level::kLayers)) {
      attempt("layers", [&] {
        report_.layers =
            compare_layers(from.model, to.model, prompts, run_options("comparing layers"));
      });
    }
    if (!asked_for(Level::kGreedy)) return;
    attempt("greedy", [&] {
      report_.greedy =
          compare_greedy(from.model, to.model, prompts, words, run_options("generating"));
    });
  }

  // With all levels it is left out where a side has no MTP layer; asked for by name it is refused.
  void run_drafts(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    const auto lacks = [](ErrorCode code, std::string_view side) {
      return Error(code,
                   "the {} has no layer for multi-token prediction, so it drafts nothing (--levels "
                   "without draft)",
                   side);
    };
    const bool source_has = has_mtp_layer(from.model), output_has = has_mtp_layer(to.model);
    if (options_.levels.size() == levels().size() && !(source_has && output_has)) {
      std::erase(report_.levels, Level::kDraft);
      return;
    }
    if (!source_has) throw lacks(ErrorCode::kUnsupported, "source");
    shard::require_all_ranks(from.model);
    shard::require_all_ranks(to.model);
    attempt("draft", [&] {
      if (!output_has) throw lacks(ErrorCode::kMissingTensor, "output");
      if (!inputs_->draft_texts) {
        RunOptions options = run_options("drafting, source");
        inputs_->draft_texts =
            options_.text.empty()
                ? answered_text(from.model, prompts_for(from, open_tokenizer(from.model)), options)
                : whole_text(documents_for(from.model));
        options.output_profile = options.source_profile;
        inputs_->drafts = measure_drafts(from.model, *inputs_->draft_texts, options);
      }
      report_.draft =
          compare_drafts(inputs_->drafts,
                         measure_drafts(to.model, *inputs_->draft_texts, run_options("drafting")));
      report_.draft->of_given_text = !options_.text.empty();
    });
  }

  void measure_text(const ComparedCheckpoint* from, const ComparedCheckpoint& to) {
    const formats::Checkpoint& model = from != nullptr ? from->model : to.model;
    shard::require_all_ranks(model);
    shard::require_all_ranks(to.model);
    const std::vector<Prompt>& documents = documents_for(model);
    const RunOptions options = run_options("reading text");
    report_.text =
        from != nullptr
            ? compare_text(from->model, to.model, documents, options)
            : TextReport{.source = {}, .output = measure_likelihood(to.model, documents, options)};
    report_.text->documents = inputs_->n_documents;
  }

  void compare_with_reference(const ComparedCheckpoint& side) {
    shard::require_all_ranks(side.model);
    report_.levels = {Level::kLayers};
    const std::optional<inference::Tokenizer> tokenizer = open_tokenizer(side.model);
    attempt("reference", [&] {
      ReferenceReport found = compare_reference(side.model, options_.reference,
                                                run_options("comparing with the recording"));
      report_.reference = std::move(found.recorded_by);
      report_.layers = std::move(found.layers);
      report_.greedy = std::move(found.greedy);
      if (!report_.greedy) return;
      report_.levels.push_back(Level::kGreedy);
      finish_greedy(*report_.greedy, tokenizer ? &*tokenizer : nullptr);
    });
  }

  [[nodiscard]] Thresholds thresholds(std::string_view search) const {
    return make_thresholds(search, options_.thresholds, options_.requirements);
  }

  void judge_report(const std::string& search) {
    if (auto warning = inconclusive_warning(report_)) {
      report_.warnings.push_back(std::move(*warning));
    }
    Thresholds limits = thresholds(search);
    if (is_pruned_) drop_defaults_of_models(limits);
    report_.gates = judge(report_, limits);
  }

  const VerificationOptions& options_;
  bool keeps_faults_ = true;  // of the output, in the report
  bool is_pruned_ = false;    // the output lacks experts of the source with which it is run
  std::map<std::uint32_t, std::vector<std::uint32_t>> kept_;
  std::string side_;
  SourceInputs own_inputs_;
  SourceInputs* inputs_ = &own_inputs_;
  Report report_;
};

}  // namespace

Report verify_pair(const std::filesystem::path& source, const std::filesystem::path& output,
                   const VerificationOptions& options) {
  if (options.ranks != nullptr) require_of_ranks(options);
  return Verification(options).pair(source, output);
}

void follow_verification(const std::filesystem::path& rank, const VerificationOptions& options) {
  require_of_ranks(options);
  const formats::Checkpoint model = open_with(options, rank, options.output_config).model;
  const RunOptions run = {.tokens = options.greedy_tokens,
                          .output_profile = options.output_profile,
                          .threads = options.threads,
                          .mem_limit = options.mem_limit,
                          .ranks = options.ranks};
  if (std::ranges::find(options.levels, Level::kLayers) != options.levels.end())
    follow_layers(model, run);
  if (std::ranges::find(options.levels, Level::kGreedy) != options.levels.end())
    follow_greedy(model, run);
}

Report verify_single(const std::filesystem::path& directory, const VerificationOptions& options) {
  return Verification(options).single(directory);
}

Comparison compare_outputs(const ComparedDirectories& directories,
                           const VerificationOptions& options) {
  const bool has_reference = !directories.reference.empty();
  SourceInputs inputs;
  const auto report_of = [&](std::string side, const std::filesystem::path& output,
                             const std::filesystem::path& config) {
    VerificationOptions of_side = options;
    of_side.output_name.clear();
    of_side.output_config = config;
    of_side.source_config = has_reference ? directories.reference_config : directories.a_config;
    check::Opened opened = find_output(output, of_side);
    const ComparedSource from = open_source(has_reference ? directories.reference : directories.a,
                                            opened, of_side, !has_reference);
    if (!has_reference) of_side.source_profile = options.output_profile;
    Report report =
        Verification(of_side).unjudged(from, output, std::move(opened), std::move(side), inputs);
    report.is_difference = !has_reference;
    return report;
  };
  Comparison comparison;
  if (has_reference) comparison.a = report_of("A", directories.a, directories.a_config);
  comparison.b = report_of("B", directories.b, directories.b_config);
  return comparison;
}

}  // namespace ingot::verify
