#include "verify/verification.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/foreign_files.h"
#include "shard/join/source.h"
#include "verify/gates/gate.h"
#include "verify/layers/reference.h"
#include "verify/outputs/prompts.h"

namespace ingot::verify {
namespace {

// Whether an error while the output was read or run is a fact about the output.
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

// One verification: what every level shares, and the report in the making.
class Verification {
 public:
  explicit Verification(const VerificationOptions& options) : options_(options) {
    report_.tool_version = options.tool_version;
  }

  Report pair(const std::filesystem::path& source, const std::filesystem::path& given) {
    const std::filesystem::path output = formats::checkpoint_directory(given);
    report_.levels = options_.levels;
    const ComparedCheckpoint from = open(source, options_.source_config);
    note_remarks(from);
    report_.source = checkpoint_facts(from);
    report_.output.name = options_.output_name.empty() ? name_of(given) : options_.output_name;
    if (asked_for(Level::kStructure)) {
      report_.structure = check_structure(from, output,
                                          {.hashes = options_.hashes,
                                           .config = options_.output_config,
                                           .family = options_.family,
                                           .activation_scales = options_.activation_scales,
                                           .threads = options_.threads,
                                           .stop_requested = options_.stop_requested});
    }
    std::optional<ComparedCheckpoint> to;
    attempt("the output", [&] { to.emplace(open(output, options_.output_config)); });
    if (to) {
      take_facts(*to);
      run_levels(from, *to);
    }
    judge_report(to ? recorded_nvfp4_search(*to) : "");
    return std::move(report_);
  }

  Report single(const std::filesystem::path& directory) {
    if (options_.text.empty() && options_.reference.empty()) {
      throw Error(ErrorCode::kInvalidArgument,
                  "nothing to compare this checkpoint with: give a second one, --text or "
                  "--reference");
    }
    const ComparedCheckpoint side = open(directory, options_.output_config);
    take_facts(side);
    if (!options_.reference.empty()) compare_with_reference(side);
    if (!options_.text.empty()) measure_text(nullptr, side);
    judge_report(recorded_nvfp4_search(side));
    return std::move(report_);
  }

 private:
  static std::string name_of(const std::filesystem::path& directory) {
    return std::filesystem::absolute(directory).lexically_normal().filename();
  }

  [[nodiscard]] ComparedCheckpoint open(const std::filesystem::path& directory,
                                        const std::filesystem::path& config) const {
    return open_compared(
        directory,
        {.open = {.family = options_.family, .threads = options_.threads}, .config = config});
  }

  static Error no_tokenizer(const formats::Checkpoint& model) {
    return Error(ErrorCode::kNotFound, "is not there, and text means nothing without a tokenizer")
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
      if (!is_fault(error.code())) throw;
      report_.not_run.push_back(fmt::format("{}: {}", what, error.what()));
    }
  }

  [[nodiscard]] std::function<void(std::uint64_t, std::uint64_t)> progress_of(
      std::string_view what) const {
    if (!options_.progress) return {};
    return [this, what](std::uint64_t done, std::uint64_t total) {
      options_.progress(what, done, total);
    };
  }

  [[nodiscard]] RunOptions run_options(std::string_view what) const {
    return {.tokens = options_.greedy_tokens,
            .gap = thresholds("").greedy_gap,
            .output_profile = options_.output_profile,
            .threads = options_.threads,
            .mem_limit = options_.mem_limit,
            .progress = progress_of(what),
            .stop_requested = options_.stop_requested};
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

  void run_levels(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    if (asked_for(Level::kWeights)) {
      attempt("weights", [&] {
        report_.weights = compare_weights(from.model, to.model,
                                          {.threads = options_.threads,
                                           .mem_limit = options_.mem_limit,
                                           .sample = options_.sample,
                                           .has_given_scales = has_recorded_scales(to),
                                           .progress = progress_of("comparing weights"),
                                           .stop_requested = options_.stop_requested});
      });
    }
    if (asked_for(Level::kLayers) || asked_for(Level::kGreedy)) run_prompts(from, to);
    if (!options_.text.empty()) attempt("text", [&] { measure_text(&from, to); });
  }

  void run_prompts(const ComparedCheckpoint& from, const ComparedCheckpoint& to) {
    for (const ComparedCheckpoint* side : {&from, &to}) shard::require_all_ranks(side->model);
    const std::optional<inference::Tokenizer> tokenizer = open_tokenizer(from.model);
    const inference::Tokenizer* words = tokenizer ? &*tokenizer : nullptr;
    if (!options_.prompts.empty() && !tokenizer) throw no_tokenizer(from.model);
    const std::vector<Prompt> prompts =
        options_.prompts.empty() ? built_in_prompts(from.model, words)
                                 : read_prompts(options_.prompts, from.model, *tokenizer);
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

  void measure_text(const ComparedCheckpoint* from, const ComparedCheckpoint& to) {
    const formats::Checkpoint& model = from != nullptr ? from->model : to.model;
    shard::require_all_ranks(model);
    shard::require_all_ranks(to.model);
    const std::optional<inference::Tokenizer> tokenizer = open_tokenizer(model);
    if (!tokenizer) throw no_tokenizer(model);
    TextReport text;
    const std::vector<Prompt> documents =
        read_documents(options_.text, model, *tokenizer, &text.documents);
    if (from != nullptr) {
      RunOptions options = run_options("reading text, source");
      options.output_profile = options.source_profile;
      text.source = measure_likelihood(from->model, documents, options);
    }
    text.output = measure_likelihood(to.model, documents, run_options("reading text"));
    report_.text = text;
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

  [[nodiscard]] Thresholds thresholds(std::string_view nvfp4_search) const {
    return make_thresholds(nvfp4_search, options_.thresholds, options_.requirements);
  }

  void judge_report(const std::string& nvfp4_search) {
    if (auto warning = inconclusive_warning(report_)) {
      report_.warnings.push_back(std::move(*warning));
    }
    report_.gates = judge(report_, thresholds(nvfp4_search));
  }

  const VerificationOptions& options_;
  Report report_;
};

}  // namespace

Report verify_pair(const std::filesystem::path& source, const std::filesystem::path& output,
                   const VerificationOptions& options) {
  return Verification(options).pair(source, output);
}

Report verify_single(const std::filesystem::path& directory, const VerificationOptions& options) {
  return Verification(options).single(directory);
}

}  // namespace ingot::verify
