#include "verify/calibrate/calibrate.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "formats/files/folder.h"
#include "formats/files/named_file.h"
#include "formats/records/calibration.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "verify/calibrate/input_statistics.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using formats::DType;
using formats::Role;
using formats::TensorSpec;
using inference::LayerStream;
using inference::Matrix;
using inference::Row;

namespace {

std::string owned(std::string_view owner, std::string_view suffix) {
  return fmt::format("{}{}", owner, suffix);
}

std::string name_of_layer(std::uint32_t layer) {
  return fmt::format("model.layers.{}", layer);
}

std::vector<TensorSpec> specs_of(std::span<const CalibratedModule> modules,
                                 std::span<const std::uint32_t> moe_layers, std::size_t n_experts) {
  std::vector<TensorSpec> specs;
  for (const CalibratedModule& module : modules) {
    for (const std::string_view one : {formats::kInputAmax, formats::kInputMin, formats::kInputMax})
      specs.push_back({.name = owned(module.name, one), .dtype = DType::kF32, .shape = {1}});
    specs.push_back({.name = owned(module.name, formats::kInputMeanSquare),
                     .dtype = DType::kF32,
                     .shape = {module.width}});
  }
  for (const std::uint32_t layer : moe_layers) {
    specs.push_back({.name = owned(name_of_layer(layer), formats::kExpertTokens),
                     .dtype = DType::kI64,
                     .shape = {n_experts}});
  }
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return formats::writes_before(a.dtype, a.name, b.dtype, b.name);
  });
  return specs;
}

/// The file of activation statistics (docs/formats.md) while it is made: laid out beforehand,
/// filled in any order under another name, which goes away unless it is published.
class StatisticsFile {
 public:
  /// `n_experts` of each of `moe_layers`. kExists when `path` is there; kNoSpace when the file does
  /// not fit.
  StatisticsFile(std::filesystem::path path, std::span<const CalibratedModule> modules,
                 std::span<const std::uint32_t> moe_layers, std::size_t n_experts,
                 std::uint64_t documents, std::uint64_t tokens)
      : StatisticsFile(std::move(path)) {
    const std::vector<TensorSpec> specs = specs_of(modules, moe_layers, n_experts);
    const std::pair<std::string, std::string> metadata[] = {
        {"ingot_calibration", "1"},
        {"documents", std::to_string(documents)},
        {"tokens", std::to_string(tokens)}};
    const std::string header = formats::safetensors_header_text(specs, metadata);
    std::uint64_t offset = header.size();
    for (const TensorSpec& spec : specs) {
      offsets_.emplace(spec.name, offset);
      offset += formats::byte_count(spec.dtype, spec.shape).value();
    }
    file_.reserve(offset);
    file_.write_exact(std::as_bytes(std::span(header)), 0);
  }
  ~StatisticsFile() {
    std::error_code unused;
    if (!is_published_) std::filesystem::remove(partial_, unused);
  }
  StatisticsFile(const StatisticsFile&) = delete;
  StatisticsFile& operator=(const StatisticsFile&) = delete;

  void write(const CalibratedModule& module, const InputSummary& summary) {
    INGOT_CHECK(summary.mean_square.size() == module.width);
    const float amax = summary.amax();
    put(owned(module.name, formats::kInputAmax), std::as_bytes(std::span(&amax, 1)));
    put(owned(module.name, formats::kInputMin), std::as_bytes(std::span(&summary.min, 1)));
    put(owned(module.name, formats::kInputMax), std::as_bytes(std::span(&summary.max, 1)));
    put(owned(module.name, formats::kInputMeanSquare),
        std::as_bytes(std::span(summary.mean_square)));
  }
  void write_expert_tokens(std::uint32_t layer, std::span<const std::int64_t> tokens) {
    put(owned(name_of_layer(layer), formats::kExpertTokens), std::as_bytes(tokens));
  }
  /// Everything written is on disk under its name.
  void publish() {
    INGOT_CHECK(offsets_.empty());
    file_.sync();
    file_.close();
    require_absent_file(path_);
    rename_file(partial_, path_);
    is_published_ = true;
    sync_directory(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
  }

 private:
  // Once this one has made the file, the destructor removes it, whatever the other throws.
  explicit StatisticsFile(std::filesystem::path path) : path_(std::move(path)), partial_(path_) {
    require_absent_file(path_);
    partial_.replace_filename(fmt::format(".{}.ingot-partial", path_.filename().string()));
    file_ = Folder::open(std::filesystem::absolute(partial_).parent_path())
                .replace(partial_.filename(), O_WRONLY);
  }

  void put(const std::string& name, std::span<const std::byte> bytes) {
    const auto offset = offsets_.find(name);
    INGOT_CHECK(offset != offsets_.end());
    file_.write_exact(bytes, offset->second);
    offsets_.erase(offset);
  }

  std::filesystem::path path_, partial_;
  Fd file_;
  std::map<std::string, std::uint64_t, std::less<>> offsets_;
  bool is_published_ = false;
};

// Rows of the documents; those of the MTP layer follow from them.
std::vector<PromptSpan> document_spans(std::span<const Prompt> documents,
                                       const inference::ModelSpec& spec) {
  if (documents.empty())
    throw Error(ErrorCode::kInvalidArgument, "there is no document to calibrate with");
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (!documents[i].ids.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument, "document {} of {} is empty", i + 1, documents.size());
  }
  return spans_of(documents, spec);
}

class Calibration {
 public:
  Calibration(const formats::Checkpoint& source, std::span<const Prompt> documents,
              const std::filesystem::path& out, const RunOptions& options)
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
        n_layers_(spec_.n_main + (stream_.has_mtp() ? 1 : 0)),
        file_(out, modules_, moe_layers(), n_experts(), documents.size(), rows_.size()) {
    report_ = {.documents = documents.size(),
               .tokens = rows_.size(),
               .modules = modules_.size(),
               .unvisited = {}};
  }

  CalibrationReport run() {
    Matrix hidden = stream_.embed(rows_);
    for (std::uint32_t l = 0; l < spec_.n_main; ++l) {
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

  [[nodiscard]] std::size_t n_experts() const {
    return spec_.router() != nullptr ? spec_.router()->experts : 0;
  }

  [[nodiscard]] std::vector<std::uint32_t> moe_layers() const {
    std::vector<std::uint32_t> layers;
    for (std::uint32_t l = 0; l < n_layers_; ++l) {
      if (spec_.is_moe(l)) layers.push_back(l);
    }
    return layers;
  }

  // The memory that the limit leaves for weights.
  [[nodiscard]] std::uint64_t weight_limit() const {
    inference::RunMemory need = inference::stream_memory(source_, inference::Profile::kF32,
                                                         lengths_of(spans_), options_.threads);
    std::uint64_t widest = 0;
    for (std::uint32_t l = 0; l <= spec_.n_main; ++l)
      widest = std::max(widest, LayerStatistics::memory(modules_of(l)));
    // The hidden states, and the states of the MTP layer.
    need.scratch += 3 * rows_.size() * spec_.stream_width() * sizeof(float) + widest +
                    modules_.size() * kBytesPerModule;
    return inference::weight_limit(need, options_.mem_limit);
  }

  void begin(const std::vector<const CalibratedModule*>& modules, std::size_t experts) {
    current_ = modules;
    statistics_.begin(current_, experts);
  }

  void finish() {
    const std::vector<InputSummary> summaries = statistics_.summaries();
    for (std::size_t i = 0; i < current_.size(); ++i) file_.write(*current_[i], summaries[i]);
  }

  void begin_layer(std::uint32_t l) { begin(modules_of(l), spec_.is_moe(l) ? n_experts() : 0); }

  void finish_layer(std::uint32_t l) {
    finish();
    if (spec_.is_moe(l)) {
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

  // The product is not needed, only its input.
  void see_head(Role role, const Matrix& x) {
    for (const CalibratedModule* module : current_) {
      if (module->role == role) statistics_.see(module->weight, module->matrix, x.view());
    }
  }

  void run_mtp(const Matrix& normed) {
    const auto l = static_cast<std::uint32_t>(spec_.n_main);
    const std::vector<PromptSpan> next = next_token_spans(spans_);
    if (next.empty()) {
      throw Error(ErrorCode::kUnsupported,
                  "no document has two tokens, so that the MTP layer {} sees none (give more text)",
                  l);
    }
    const std::vector<Row> rows = rows_of(next, 1);
    const Matrix paired = states_before(normed.view(), spans_, next);
    begin_layer(l);
    const Matrix out = stream_.mtp(paired, rows, statistics_.taps());
    see_head(Role::kMtpHead, out);
    finish_layer(l);
  }

  // Names of a module and its places in tables.
  static constexpr std::uint64_t kBytesPerModule = 1024;

  const formats::Checkpoint& source_;
  const RunOptions& options_;
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
                            const std::filesystem::path& out, const RunOptions& options) {
  return Calibration(source, documents, out, options).run();
}

}  // namespace ingot::verify
