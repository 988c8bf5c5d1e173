#include "verify/calibrate/calibrate.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "verify/calibrate/layer_statistics.h"
#include "verify/calibrate/statistics_file.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {
namespace {

using formats::Role;
using inference::LayerStream;
using inference::Matrix;
using inference::Row;

// Rows of the documents; those of the MTP layer follow from them.
std::vector<PromptSpan> document_spans(std::span<const Prompt> documents,
                                       const inference::ModelSpec& spec) {
  if (documents.empty())
    throw Error(ErrorCode::kInvalidArgument, "there is no document to calibrate with");
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (!documents[i].ids.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("document {} of {} is empty", i + 1, documents.size()));
  }
  return spans_of(documents, spec);
}

class Calibration {
 public:
  Calibration(const formats::Checkpoint& source, std::span<const Prompt> documents,
              const std::filesystem::path& out, const CalibrateOptions& options)
      : source_(source),
        options_(options),
        spec_(inference::model_spec(source.family(), source.config())),
        spans_(document_spans(documents, spec_)),
        rows_(rows_of(spans_, 1)),
        modules_(calibrated_modules(source, spec_)),
        statistics_(options.threads),
        stream_(source, {.profile = inference::Profile::kF32,
                         .threads = options.threads,
                         .weight_limit = weight_limit(),
                         .observer = &statistics_}),
        n_layers_(spec_.layers + (stream_.has_mtp() ? 1 : 0)),
        file_(out, modules_, moe_layers(), n_experts(), documents.size(), rows_.size()) {
    report_ = {.documents = documents.size(),
               .tokens = rows_.size(),
               .modules = modules_.size(),
               .unvisited = {}};
  }

  CalibrationReport run() {
    Matrix hidden = stream_.embed(rows_);
    for (std::uint32_t l = 0; l < spec_.layers; ++l) {
      begin_layer(l);
      stream_.layer(l, hidden, rows_, statistics_.taps());
      finish_layer(l);
    }
    const Matrix normed = stream_.final_norm(hidden);
    begin(modules_of(std::nullopt), 0);
    see_head(Role::kHead, normed);
    finish();
    hidden = {};
    if (stream_.has_mtp()) run_mtp(normed);
    file_.publish();
    return std::move(report_);
  }

 private:
  [[nodiscard]] std::vector<const CalibratedModule*> modules_of(
      std::optional<std::uint32_t> layer) const {
    std::vector<const CalibratedModule*> modules;
    for (const CalibratedModule& module : modules_) {
      if (module.layer == layer) modules.push_back(&module);
    }
    return modules;
  }

  [[nodiscard]] std::size_t n_experts() const { return spec_.router ? spec_.router->experts : 0; }

  [[nodiscard]] std::vector<std::uint32_t> moe_layers() const {
    std::vector<std::uint32_t> layers;
    for (std::uint32_t l = 0; l < n_layers_; ++l) {
      if (spec_.is_moe[l]) layers.push_back(l);
    }
    return layers;
  }

  // What the limit leaves for weights.
  [[nodiscard]] std::uint64_t weight_limit() const {
    inference::RunMemory need = inference::stream_memory(source_, inference::Profile::kF32,
                                                         lengths_of(spans_), options_.threads);
    std::uint64_t widest = 0;
    for (std::uint32_t l = 0; l <= spec_.layers; ++l)
      widest = std::max(widest, LayerStatistics::memory(modules_of(l)));
    // The hidden states, and what the MTP layer makes of them.
    need.scratch += 3 * rows_.size() * spec_.hidden * sizeof(float) + widest +
                    modules_.size() * kBytesPerModule;
    return inference::weight_limit(need, options_.mem_limit);
  }

  void begin(const std::vector<const CalibratedModule*>& modules, std::size_t experts) {
    if (options_.stop_requested && options_.stop_requested())
      throw Error(ErrorCode::kInterrupted, "calibration stopped; nothing was written");
    current_ = modules;
    statistics_.begin(current_, experts);
  }

  void finish() {
    const std::vector<InputSummary> summaries = statistics_.summaries();
    for (std::size_t i = 0; i < current_.size(); ++i) file_.write(*current_[i], summaries[i]);
  }

  void begin_layer(std::uint32_t l) { begin(modules_of(l), spec_.is_moe[l] ? n_experts() : 0); }

  void finish_layer(std::uint32_t l) {
    finish();
    if (spec_.is_moe[l]) {
      const auto tokens = statistics_.expert_tokens();
      file_.write_expert_tokens(l, tokens);
      UnvisitedExperts unvisited{.layer = l, .experts = {}};
      for (std::uint32_t expert = 0; expert < tokens.size(); ++expert) {
        if (tokens[expert] == 0) unvisited.experts.push_back(expert);
      }
      if (!unvisited.experts.empty()) report_.unvisited.push_back(std::move(unvisited));
    }
    if (options_.progress) options_.progress(l + 1, n_layers_);
  }

  // The product is not needed, only what would go into it.
  void see_head(Role role, const Matrix& x) {
    for (const CalibratedModule* module : current_) {
      if (module->role == role) statistics_.see(module->weight, module->matrix, x.view());
    }
  }

  void run_mtp(const Matrix& normed) {
    const auto l = static_cast<std::uint32_t>(spec_.layers);
    const std::vector<PromptSpan> next = next_token_spans(spans_);
    if (next.empty()) {
      throw Error(
          ErrorCode::kUnsupported,
          fmt::format("no document has two tokens, so that the MTP layer {} sees none (give "
                      "more text)",
                      l));
    }
    const std::vector<Row> rows = rows_of(next, 1);
    const Matrix paired = states_before(normed.view(), spans_, next);
    begin_layer(l);
    const Matrix out = stream_.mtp(paired, rows, statistics_.taps());
    see_head(Role::kMtpHead, out);
    finish_layer(l);
  }

  // Names and places.
  static constexpr std::uint64_t kBytesPerModule = 1024;

  const formats::Checkpoint& source_;
  const CalibrateOptions& options_;
  inference::ModelSpec spec_;
  std::vector<PromptSpan> spans_;
  std::vector<Row> rows_;
  std::vector<CalibratedModule> modules_;
  LayerStatistics statistics_;
  LayerStream stream_;
  std::size_t n_layers_;
  StatisticsFile file_;
  std::vector<const CalibratedModule*> current_;
  CalibrationReport report_;
};

}  // namespace

CalibrationReport calibrate(const formats::Checkpoint& source, std::span<const Prompt> documents,
                            const std::filesystem::path& out, const CalibrateOptions& options) {
  return Calibration(source, documents, out, options).run();
}

}  // namespace ingot::verify
