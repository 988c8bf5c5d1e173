#include "verify/calibrate/calibrate.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "check/model_fingerprint.h"
#include "formats/base/checked.h"
#include "formats/base/error.h"
#include "formats/base/stop_scope.h"
#include "formats/config/routing.h"
#include "formats/container/safetensors.h"
#include "formats/files/folder.h"
#include "formats/files/free_space.h"
#include "formats/files/named_file.h"
#include "formats/json/json.h"
#include "formats/records/calibration.h"
#include "inference/family/model_family.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/layer_stream.h"
#include "verify/calibrate/cache_ranges.h"
#include "verify/calibrate/input_statistics.h"
#include "verify/calibrate/layer_moments.h"
#include "verify/calibrate/planned_file.h"
#include "verify/calibrate/spilled_rows.h"
#include "verify/calibrate/statistics_directory.h"
#include "verify/outputs/prompt_rows.h"

namespace ingot::verify {

using formats::DType;
using formats::Role;
using formats::TensorSpec;
using inference::LayerStream;
using inference::Matrix;
using inference::Row;

namespace {

// Names of a module and its places in tables.
constexpr std::uint64_t kBytesPerModule = 1024;
// Rows of hidden states that are alive at once: those of a batch, before and behind, and normed.
constexpr std::uint64_t kStatesAtOnce = 3;

std::string owned(std::string_view owner, std::string_view ending) {
  return fmt::format("{}{}", owner, ending);
}

std::string name_of_layer(std::uint32_t layer) {
  return fmt::format("model.layers.{}", layer);
}

std::string name_of_part(const ModelPart& part) {
  if (part == kEmbeddingPart) return "embedding";
  return part == kHeadPart ? "head" : name_of_layer(part.layer);
}

// Throws for documents that cannot be read.
void require_documents(std::span<const Prompt> documents) {
  if (documents.empty())
    throw Error(ErrorCode::kInvalidArgument, "there is no document to calibrate with");
  for (std::size_t i = 0; i < documents.size(); ++i) {
    if (!documents[i].ids.empty()) continue;
    throw Error(ErrorCode::kInvalidArgument, "document {} of {} is empty", i + 1, documents.size());
  }
}

Hash128 text_hash(std::span<const Prompt> documents) {
  TensorHasher hasher;
  for (const Prompt& document : documents) {
    const std::uint64_t n = document.ids.size();
    hasher.update(std::as_bytes(std::span(&n, 1)));
    hasher.update(std::as_bytes(std::span(document.ids)));
  }
  return hasher.finish();
}

/// Documents that go through a layer together, and their places among the rows of all.
struct DocumentBatch {
  std::vector<PromptSpan> spans, next;  // next: rows of the MTP layer
  std::vector<Row> rows, next_rows;
  std::uint64_t first_row = 0, first_next = 0;
};

std::vector<DocumentBatch> batches_of(std::span<const Prompt> documents,
                                      const inference::ModelSpec& spec, std::size_t count) {
  std::uint64_t n_tokens = 0;
  for (const Prompt& document : documents) n_tokens += document.ids.size();
  std::vector<DocumentBatch> batches;
  std::uint64_t done = 0, done_next = 0;
  for (std::size_t first = 0; first < documents.size();) {
    const std::uint64_t target = n_tokens * (batches.size() + 1) / count;
    std::size_t end = first;
    std::uint64_t n = 0;
    while (end < documents.size() && (end == first || done + n < target))
      n += documents[end++].ids.size();
    DocumentBatch& batch = batches.emplace_back();
    batch.spans = spans_of(documents.subspan(first, end - first), spec);
    batch.next = next_token_spans(batch.spans);
    batch.rows = rows_of(batch.spans, 1);
    if (!batch.next.empty()) batch.next_rows = rows_of(batch.next, 1);
    batch.first_row = done;
    batch.first_next = done_next;
    done += batch.rows.size();
    done_next += batch.next_rows.size();
    first = end;
  }
  return batches;
}

// True if a layer needs more of those before it than the hidden states.
bool shares_between_layers(const inference::ModelSpec& spec) {
  if (spec.loop) return true;
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    const auto* latent = spec.layers[l].find<inference::LatentSpec>();
    if (spec.keys_of(l) != l || (latent != nullptr && latent->takes_earlier_choice)) return true;
  }
  return false;
}

void require_same_shapes(const inference::ModelSpec& source, const inference::ModelSpec& quantized,
                         const formats::Checkpoint& of_quantized) {
  if (source.layers.size() == quantized.layers.size() && source.n_main == quantized.n_main &&
      source.stream_width() == quantized.stream_width() && source.vocab == quantized.vocab)
    return;
  throw Error(ErrorCode::kMismatch,
              "has {} layers of {} values, the model {} of {} (--quantized takes a conversion of "
              "all layers of the model)",
              quantized.n_main, quantized.hidden, source.n_main, source.hidden)
      .in_file(of_quantized.directory().string());
}

// The quantized schemes of a model's weights, `fp8-block+nvfp4`.
std::string schemes_of(const formats::Checkpoint& model) {
  std::set<std::string_view> names;
  for (const formats::LogicalTensor& tensor : model.tensors()) {
    const formats::SchemeFacts& facts = formats::scheme_facts(tensor.encoding.scheme);
    if (facts.quantized) names.insert(facts.name);
  }
  return fmt::format("{}", fmt::join(names, "+"));
}

/// One file of ranges, mean squares and counts under another name, which goes away unless it is
/// published.
class SingleFile {
 public:
  SingleFile(std::filesystem::path path, PlannedFile& file)
      : path_(std::move(path)), partial_(path_) {
    require_absent_file(path_);
    partial_.replace_filename(fmt::format(".{}.ingot-partial", path_.filename().string()));
    is_made_ = true;
    file.create(Folder::open(std::filesystem::absolute(partial_).parent_path()),
                partial_.filename().string());
  }
  ~SingleFile() {
    std::error_code unused;
    if (is_made_) std::filesystem::remove(partial_, unused);
  }
  SingleFile(const SingleFile&) = delete;
  SingleFile& operator=(const SingleFile&) = delete;

  void publish() {
    require_absent_file(path_);
    rename_file(partial_, path_);
    is_made_ = false;
    sync_directory(path_.has_parent_path() ? path_.parent_path() : std::filesystem::path("."));
  }

 private:
  std::filesystem::path path_, partial_;
  bool is_made_ = false;
};

/// Hidden states between two layers: in one of two files, the other of which gets those behind the
/// next layer; or in memory, of a single batch.
class HiddenStates {
 public:
  HiddenStates() = default;
  HiddenStates(const Folder& folder, bool continues, std::uint64_t current) : current_(current) {
    for (std::uint64_t i = 0; i < files_.size(); ++i) {
      const std::string name = fmt::format("hidden-{}", i);
      files_[i] = continues && i == current ? SpilledRows::open(folder, name)
                                            : SpilledRows::create(folder, name);
    }
  }

  [[nodiscard]] Matrix take(const DocumentBatch& batch, std::size_t cols) {
    if (!files_[0]) return std::move(memory_);
    return files_[current_]->read(batch.first_row, batch.rows.size(), cols);
  }
  void give(const DocumentBatch& batch, Matrix states) {
    if (!files_[0]) {
      memory_ = std::move(states);
    } else {
      files_[1 - current_]->write(batch.first_row, states.view());
    }
  }
  /// All batches were given: those are taken from now on.
  void turn() {
    if (!files_[0]) return;
    current_ = 1 - current_;
    files_[current_]->sync();
  }
  [[nodiscard]] std::uint64_t current() const { return current_; }

 private:
  std::array<std::optional<SpilledRows>, 2> files_;
  std::uint64_t current_ = 0;
  Matrix memory_;
};

class Calibration {
 public:
  Calibration(const formats::Checkpoint& source, std::span<const Prompt> documents,
              const std::filesystem::path& out, const RunOptions& options,
              const CalibrationOptions& what)
      : source_(source),
        documents_(documents),
        out_(out),
        options_(options),
        what_(what),
        is_directory_(out.extension() != formats::kWeightsSuffix),
        spec_(inference::model_spec(source.family(), source.config())),
        modules_(calibrated_modules(source, spec_)),
        statistics_(options.threads),
        cache_(source, spec_) {
    require_documents(documents);
    const inference::RouterSpec* router = spec_.router();
    if (is_directory_ && what.blocks) blocks_ = block_inputs(modules_);
    if (is_directory_ && what.moments)
      wholes_ = whole_inputs(modules_, router != nullptr && !router->scales_input);
    const std::uint64_t limit = choose_batches();
    for (const DocumentBatch& batch : batches_) {
      n_rows_ += batch.rows.size();
      n_next_ += batch.next_rows.size();
    }
    const auto stream_of = [&](const formats::Checkpoint& model, inference::Profile profile,
                               inference::InputObserver* observer) {
      return std::make_unique<LayerStream>(model,
                                           inference::LayerStreamOptions{.profile = profile,
                                                                         .threads = options.threads,
                                                                         .weight_limit = limit,
                                                                         .observer = observer});
    };
    stream_ = stream_of(source, inference::Profile::kF32, &observer_);
    if (what.quantized != nullptr) {
      quantized_ = stream_of(*what.quantized, inference::Profile::kNative, nullptr);
      require_same_shapes(spec_, quantized_->spec(), *what.quantized);
    }
    n_layers_ = spec_.n_main + (stream_->has_mtp() ? 1 : 0);
    report_ = {.documents = documents.size(),
               .tokens = n_rows_,
               .modules = modules_.size(),
               .unvisited = {}};
    lay_out();
  }

  CalibrationReport run() {
    begin_output();
    try {
      if (!directory_ || !directory_->is_complete()) compute();
      finish_output();
    } catch (const Error& error) {
      // Nothing was computed before the first step.
      if (directory_ && error.code() == ErrorCode::kInterrupted && step_ > 0) directory_->keep();
      throw;
    }
    return std::move(report_);
  }

 private:
  // Shows what the forward pass shows to those who look at the layer.
  struct Observer final : inference::InputObserver {
    explicit Observer(Calibration& owner) : of(owner) {}
    void see(std::string_view weight, std::size_t matrix,
             formats::MatrixView<const float> x) override {
      of.statistics_.see(weight, matrix, x);
      if (of.layer_moments_) of.layer_moments_->see(weight, matrix, x);
    }
    Calibration& of;
  };

  [[nodiscard]] std::vector<const CalibratedModule*> modules_of(const ModelPart& part) const {
    std::vector<const CalibratedModule*> modules;
    for (const CalibratedModule& module : modules_) {
      if (module.part == part) modules.push_back(&module);
    }
    return modules;
  }

  [[nodiscard]] std::size_t n_experts(std::uint32_t layer) const {
    return static_cast<std::size_t>(formats::experts_of(source_.config(), layer));
  }

  // Memory of a run with these batches, of which the one with most tokens counts.
  [[nodiscard]] inference::RunMemory memory_of(const std::vector<DocumentBatch>& batches) const {
    const DocumentBatch* most = nullptr;
    std::uint64_t most_tokens = 0;
    for (const DocumentBatch& batch : batches) {
      std::uint64_t n = 0;
      for (const std::size_t length : lengths_of(batch.spans))
        n += round_up(length, inference::KvCache::kPageTokens);
      if (n > most_tokens) most = &batch;
      most_tokens = std::max(most_tokens, n);
    }
    inference::RunMemory need = inference::stream_memory(source_, inference::Profile::kF32,
                                                         lengths_of(most->spans), options_.threads);
    if (what_.quantized != nullptr) {
      const inference::RunMemory other = inference::stream_memory(
          *what_.quantized, inference::Profile::kNative, lengths_of(most->spans), options_.threads);
      need.resident = std::max(need.resident, other.resident);
      need.experts = std::max(need.experts, other.experts);
      need.two_experts = std::max(need.two_experts, other.two_experts);
      need.cache = std::max(need.cache, other.cache);
      need.scratch = std::max(need.scratch, other.scratch) + what_.quantized_memory;
    }
    std::uint64_t widest = 0;
    const auto include = [&](const ModelPart& part) {
      std::uint64_t own = LayerStatistics::memory(modules_of(part));
      if (is_directory_) own += LayerMoments::memory(blocks_, wholes_, part);
      widest = std::max(widest, own);
    };
    include(kEmbeddingPart);
    for (std::uint32_t l = 0; l <= spec_.n_main; ++l) include(layer_part(l));
    include(kHeadPart);
    const std::size_t n_names = modules_.size() + blocks_.size() + wholes_.size();
    need.scratch += kStatesAtOnce * most->rows.size() * spec_.stream_width() * sizeof(float) +
                    widest + n_names * kBytesPerModule;
    return need;
  }

  // Returns the memory that is left for weights. All experts of a layer are in memory where some
  // number of batches leaves room for them; else the fewest batches are taken.
  std::uint64_t choose_batches() {
    const bool is_one = !is_directory_ || shares_between_layers(spec_);
    std::optional<std::vector<DocumentBatch>> fewest;
    std::vector<DocumentBatch> batches;
    for (std::size_t n = 1; n < 2 * documents_.size(); n *= 2) {
      batches = batches_of(documents_, spec_, n);
      const inference::RunMemory need = memory_of(batches);
      if (options_.mem_limit == 0 || need.all() <= options_.mem_limit) {
        fewest = std::move(batches);
        break;
      }
      if (!fewest && need.least() <= options_.mem_limit) fewest = batches;
      if (is_one) break;
    }
    batches_ = fewest ? *std::move(fewest) : std::move(batches);
    return inference::weight_limit(memory_of(batches_), options_.mem_limit);
  }

  // The files: their tensors, and what becomes of them.
  void lay_out() {
    std::vector<TensorSpec> inputs;
    for (const CalibratedModule& module : modules_) {
      for (const std::string_view one :
           {formats::kInputAmax, formats::kInputMin, formats::kInputMax})
        inputs.push_back({.name = owned(module.name, one), .dtype = DType::kF32, .shape = {1}});
      inputs.push_back({.name = owned(module.name, formats::kInputMeanSquare),
                        .dtype = DType::kF32,
                        .shape = {module.width}});
    }
    for (std::uint32_t l = 0; l < n_layers_; ++l) {
      if (!spec_.is_moe(l)) continue;
      inputs.push_back({.name = owned(name_of_layer(l), formats::kExpertTokens),
                        .dtype = DType::kI64,
                        .shape = {n_experts(l)}});
      if (!is_directory_) continue;
      inputs.push_back({.name = owned(name_of_layer(l), formats::kExpertSaliency),
                        .dtype = DType::kF32,
                        .shape = {n_experts(l)}});
    }
    const std::pair<std::string, std::string> metadata[] = {
        {"ingot_calibration", "1"},
        {"documents", std::to_string(documents_.size())},
        {"tokens", std::to_string(n_rows_)}};
    inputs_.emplace(std::move(inputs), metadata);
    if (!is_directory_) return;
    std::vector<TensorSpec> cached;
    for (TensorSpec& tensor : cache_.tensors(n_layers_)) cached.push_back(std::move(tensor));
    if (what_.cache && !cached.empty()) cached_.emplace(std::move(cached), metadata);
    if (!blocks_.empty()) {
      std::vector<TensorSpec> blocks;
      for (const MomentInput& input : blocks_) {
        blocks.push_back({.name = owned(input.owner, formats::kInputBlockMoments),
                          .dtype = DType::kF32,
                          .shape = {input.width / formats::kMomentBlock, formats::kMomentBlock,
                                    formats::kMomentBlock}});
      }
      blocks_file_.emplace(std::move(blocks), metadata);
    }
  }

  [[nodiscard]] std::vector<std::pair<std::string, PlannedFile*>> files() {
    std::vector<std::pair<std::string, PlannedFile*>> files;
    const auto add = [&](std::string_view name, std::optional<PlannedFile>& file) {
      if (file) files.emplace_back(name, &*file);
    };
    add(formats::kInputsName, inputs_);
    add(formats::kCacheName, cached_);
    add(formats::kBlocksName, blocks_file_);
    return files;
  }

  [[nodiscard]] bool has_downs() const {
    return std::ranges::any_of(wholes_, [](const MomentInput& input) { return input.is_down(); });
  }

  [[nodiscard]] CalibrationNeed need() {
    CalibrationNeed need{.batches = batches_.size(), .steps = n_layers_};
    for (const auto& [name, file] : files()) need.statistics += file->n_bytes();
    std::uint64_t widest_down = 0;
    for (const MomentInput& input : wholes_) {
      need.statistics += std::uint64_t{input.width} * input.width * sizeof(float);
      if (input.is_down()) widest_down = std::max<std::uint64_t>(widest_down, input.width);
    }
    if (!is_directory_) return need;
    const std::uint64_t n_states =
        2 * n_rows_ * spec_.stream_width() + (stream_->has_mtp() ? n_next_ * spec_.hidden : 0);
    const std::uint64_t n_inner =
        spec_.router() != nullptr ? n_rows_ * spec_.router()->topk * widest_down : 0;
    need.spilled = (n_states + n_inner) * sizeof(float);
    return need;
  }

  [[nodiscard]] formats::Json identity() const {
    std::string products = "inputs";
    for (const auto& [word, is_there] : {std::pair{" cache", what_.cache},
                                         {" blocks", what_.blocks},
                                         {" moments", what_.moments}}) {
      if (is_there) products += word;
    }
    return {{"version", what_.tool_version},
            {"model", fingerprint_->hex()},
            {"text", text_hash(documents_).hex()},
            {"list of products", products},
            {"--shrinkage", what_.shrinkage},
            // A model that is encoded while it is read has no fingerprint.
            {"--quantized", quantized_fingerprint_       ? quantized_fingerprint_->hex()
                            : what_.quantized != nullptr ? schemes_of(*what_.quantized)
                                                         : ""}};
  }

  void begin_output() {
    CalibrationNeed needed = need();
    if (!is_directory_) {
      if (what_.announce) what_.announce(needed);
      single_.emplace(out_, *inputs_);
      return;
    }
    fingerprint_ = check::model_fingerprint(source_);
    if (what_.quantized != nullptr)
      quantized_fingerprint_ = check::model_fingerprint(*what_.quantized);
    if (!fingerprint_) {
      throw Error(ErrorCode::kUnsupported, "lacks files, so that it has no fingerprint")
          .in_file(source_.directory().string());
    }
    directory_.emplace(out_, what_.resume, identity());
    const auto& earlier = directory_->earlier();
    // Choices and keys that layers share are in memory only.
    const bool continues = earlier && earlier->steps > 0 &&
                           (!shares_between_layers(spec_) || earlier->steps > spec_.n_main);
    needed.steps_done = continues ? earlier->steps - 1 : 0;
    if (what_.announce) what_.announce(needed);
    if (directory_->is_complete()) return;
    const std::uint64_t free = free_bytes(out_);
    if (!continues && free < needed.statistics + needed.spilled) {
      throw Error(ErrorCode::kNoSpace,
                  "its disk has {} bytes free; statistics take {}, activations {} until it ends "
                  "(--without moments takes less)",
                  free, needed.statistics, needed.spilled)
          .in_file(out_.string());
    }
    for (const auto& [name, file] : files()) {
      if (continues) {
        file->open(directory_->partial(), name);
      } else {
        file->create(directory_->partial(), name);
      }
    }
    if (continues) {
      step_ = earlier->steps;
      moment_files_ = earlier->moments;
    }
    states_ = HiddenStates(directory_->partial(), continues, continues ? earlier->states : 0);
    if (has_downs()) inner_.emplace(directory_->partial(), "inner");
  }

  // All that was written until now is on disk.
  void commit() {
    ++step_;
    if (!directory_) return;
    for (const auto& [name, file] : files()) file->sync();
    directory_->commit({.steps = step_, .states = states_.current(), .moments = moment_files_});
  }

  void begin(const ModelPart& part, std::size_t experts) {
    current_ = modules_of(part);
    statistics_.begin(current_, experts);
    layer_moments_.reset();
    if (!is_directory_) return;
    if (inner_) inner_->clear();
    layer_moments_.emplace(blocks_, wholes_, part, inner_ ? &*inner_ : nullptr, what_.shrinkage,
                           options_.threads);
  }

  inference::Taps taps() {
    inference::Taps taps = statistics_.taps();
    taps.mixture = [this](std::size_t, const Matrix& x) {
      if (layer_moments_) layer_moments_->see_mixture(x.view());
    };
    taps.cache = [this](std::size_t layer, std::size_t first_stream, std::size_t stream,
                        formats::MatrixView<const float> values) {
      cache_.see(layer, first_stream, stream, values);
    };
    return taps;
  }

  void put(const std::string& name, std::span<const std::byte> bytes) { inputs_->put(name, bytes); }

  void finish(const ModelPart& part) {
    const std::vector<InputSummary> summaries = statistics_.summaries();
    for (std::size_t i = 0; i < current_.size(); ++i) {
      const std::string& module = current_[i]->name;
      const InputSummary& summary = summaries[i];
      INGOT_CHECK(summary.mean_square.size() == current_[i]->width);
      const float amax = summary.amax();
      put(owned(module, formats::kInputAmax), std::as_bytes(std::span(&amax, 1)));
      put(owned(module, formats::kInputMin), std::as_bytes(std::span(&summary.min, 1)));
      put(owned(module, formats::kInputMax), std::as_bytes(std::span(&summary.max, 1)));
      put(owned(module, formats::kInputMeanSquare), std::as_bytes(std::span(summary.mean_square)));
    }
    if (!layer_moments_) return;
    if (blocks_file_) layer_moments_->write_blocks(*blocks_file_);
    write_moments(part);
    layer_moments_.reset();
  }

  void write_moments(const ModelPart& part) {
    std::vector<TensorSpec> tensors = layer_moments_->whole_tensors();
    if (tensors.empty()) return;
    const std::string name = fmt::format("{}/{}{}", formats::kMomentsFolder, name_of_part(part),
                                         formats::kWeightsSuffix);
    PlannedFile file(std::move(tensors), {});
    static_cast<void>(directory_->partial().make(formats::kMomentsFolder));
    file.create(directory_->partial(), name);
    layer_moments_->write_wholes(file);
    INGOT_CHECK(file.is_full());
    file.sync();
    std::erase_if(moment_files_, [&](const auto& before) { return before.name == name; });
    moment_files_.push_back({.name = name, .n_bytes = file.n_bytes(), .hash = file.hash()});
  }

  void begin_layer(std::uint32_t l) {
    cache_.begin(l);
    begin(layer_part(l), spec_.is_moe(l) ? n_experts(l) : 0);
  }

  void finish_layer(std::uint32_t l) {
    finish(layer_part(l));
    if (cached_) cache_.write(l, *cached_);
    if (spec_.is_moe(l)) {
      put(owned(name_of_layer(l), formats::kExpertTokens),
          std::as_bytes(statistics_.expert_tokens()));
      if (is_directory_) {
        const std::vector<float> saliency = statistics_.expert_saliency();
        put(owned(name_of_layer(l), formats::kExpertSaliency), std::as_bytes(std::span(saliency)));
      }
    }
    if (options_.progress) options_.progress(l + 1, n_layers_);
  }

  // The product of a head is not needed, only its input.
  void see_head(Role role, const Matrix& x) {
    for (const CalibratedModule* module : current_) {
      if (module->role == role) observer_.see(module->weight, module->matrix, x.view());
    }
  }

  template <typename Compute>
  void for_each_batch(std::size_t cols, const Compute& compute) {
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      StopScope::check();
      states_.give(batches_[i], compute(i, batches_[i], states_.take(batches_[i], cols)));
    }
    states_.turn();
  }

  // Steps: the embedding, each main layer, the head, and the MTP layer. Those that an earlier run
  // has done are left out.
  void compute() {
    if (step_ == 0) {
      begin(kEmbeddingPart, 0);
      for_each_batch(0, [&](std::size_t, const DocumentBatch& batch, const Matrix&) {
        return of_ends([&](LayerStream& stream) { return stream.embed(batch.rows); });
      });
      finish(kEmbeddingPart);
      commit();
    }
    while (step_ <= spec_.n_main) {
      run_layer(static_cast<std::uint32_t>(step_ - 1));
      commit();
    }
    if (step_ == spec_.n_main + 1) {
      begin(kHeadPart, 0);
      for_each_batch(
          spec_.stream_width(), [&](std::size_t, const DocumentBatch&, const Matrix& hidden) {
            Matrix normed = of_ends([&](LayerStream& stream) { return stream.final_norm(hidden); });
            see_head(Role::kHead, normed);
            return normed;
          });
      finish(kHeadPart);
      commit();
    }
    if (stream_->has_mtp() && step_ == spec_.n_main + 2) {
      run_mtp();
      commit();
    }
  }

  // Returns what the stream that makes layers' inputs computes before or behind the layers. Where
  // linears there are measured, the source's stream shows their inputs.
  template <typename Compute>
  Matrix of_ends(const Compute& compute) {
    if (!quantized_) return compute(*stream_);
    const bool is_shown = std::ranges::any_of(
        current_, [](const CalibratedModule* module) { return module->role != Role::kHead; });
    if (is_shown) static_cast<void>(compute(*stream_));
    return compute(*quantized_);
  }

  void run_layer(std::uint32_t l) {
    begin_layer(l);
    const std::size_t width = spec_.stream_width();
    {
      LayerStream::LoadedLayer layer = stream_->load(l);
      const inference::Taps shown = taps();
      const auto run = [&](std::size_t i, const DocumentBatch& batch, Matrix hidden) {
        layer.run(i, hidden, batch.rows, shown);
        return hidden;
      };
      if (!quantized_) {
        for_each_batch(width, run);
      } else {
        for (std::size_t i = 0; i < batches_.size(); ++i) {
          StopScope::check();
          static_cast<void>(run(i, batches_[i], states_.take(batches_[i], width)));
        }
      }
    }
    if (quantized_) {
      LayerStream::LoadedLayer layer = quantized_->load(l);
      for_each_batch(width, [&](std::size_t i, const DocumentBatch& batch, Matrix hidden) {
        layer.run(i, hidden, batch.rows, {});
        return hidden;
      });
    }
    finish_layer(l);
  }

  void run_mtp() {
    const auto l = static_cast<std::uint32_t>(spec_.n_main);
    if (n_next_ == 0) {
      throw Error(ErrorCode::kUnsupported,
                  "no document has two tokens, so that the MTP layer {} sees none (give more text)",
                  l);
    }
    // The embedding is not in memory together with the layer.
    std::optional<SpilledRows> embedded;
    if (directory_) embedded = SpilledRows::create(directory_->partial(), "embedded");
    Matrix in_memory;
    for (const DocumentBatch& batch : batches_) {
      if (batch.next.empty()) continue;
      Matrix rows = stream_->embed(batch.next_rows);
      if (embedded) {
        embedded->write(batch.first_next, rows.view());
      } else {
        in_memory = std::move(rows);
      }
    }
    begin_layer(l);
    LayerStream::LoadedLayer layer = stream_->load(l);
    for (std::size_t i = 0; i < batches_.size(); ++i) {
      const DocumentBatch& batch = batches_[i];
      StopScope::check();
      if (batch.next.empty()) continue;
      const Matrix normed = states_.take(batch, spec_.hidden);
      const Matrix paired = states_before(normed.view(), batch.spans, batch.next);
      const Matrix tokens =
          embedded ? embedded->read(batch.first_next, batch.next_rows.size(), embedded_width())
                   : std::move(in_memory);
      const Matrix out = layer.mtp(i, tokens, paired, batch.next_rows, taps());
      see_head(Role::kMtpHead, out);
    }
    finish_layer(l);
  }

  // Values of an embedded token, with what layers carry.
  [[nodiscard]] std::size_t embedded_width() const { return spec_.stream_width(); }

  void list_unvisited() {
    for (std::uint32_t l = 0; l < n_layers_; ++l) {
      if (!spec_.is_moe(l)) continue;
      const std::vector<std::byte> bytes =
          inputs_->read(owned(name_of_layer(l), formats::kExpertTokens));
      std::vector<std::int64_t> tokens(bytes.size() / sizeof(std::int64_t));
      std::memcpy(tokens.data(), bytes.data(), bytes.size());
      UnvisitedExperts unvisited{.layer = l, .experts = {}};
      for (std::uint32_t expert = 0; expert < tokens.size(); ++expert) {
        if (tokens[expert] == 0) unvisited.experts.push_back(expert);
      }
      if (!unvisited.experts.empty()) report_.unvisited.push_back(std::move(unvisited));
    }
  }

  void finish_output() {
    if (single_) {
      INGOT_CHECK(inputs_->is_full());
      list_unvisited();
      inputs_->sync();
      single_->publish();
      report_.n_bytes = inputs_->n_bytes();
      return;
    }
    if (directory_->is_complete()) {
      directory_->publish_again();
      inputs_->open(Folder::open(out_), std::string(formats::kInputsName));
    } else {
      formats::CalibrationRecord record{
          .tool_version = what_.tool_version,
          .source = *fingerprint_,
          .text = text_hash(documents_),
          .documents = documents_.size(),
          .tokens = n_rows_,
          .shrinkage = what_.shrinkage,
          .quantized = what_.quantized != nullptr ? schemes_of(*what_.quantized) : std::string(),
          .files = {},
          .shared_blocks = shared_inputs(blocks_),
          .shared_moments = shared_inputs(wholes_)};
      for (const auto& [name, file] : files()) {
        INGOT_CHECK(directory_->earlier() || file->is_full());
        file->sync();
        record.files.push_back({.name = name, .n_bytes = file->n_bytes(), .hash = file->hash()});
      }
      record.files.insert(record.files.end(), moment_files_.begin(), moment_files_.end());
      directory_->publish(record);
    }
    list_unvisited();
    const auto written = formats::CalibrationStatistics::open(out_);
    for (const formats::CalibrationFile& file : written.record()->files)
      report_.n_bytes += file.n_bytes;
  }

  const formats::Checkpoint& source_;
  std::span<const Prompt> documents_;
  const std::filesystem::path& out_;
  const RunOptions& options_;
  const CalibrationOptions& what_;
  bool is_directory_;
  inference::ModelSpec spec_;
  std::vector<CalibratedModule> modules_;
  std::vector<MomentInput> blocks_, wholes_;
  std::vector<DocumentBatch> batches_;
  std::uint64_t n_rows_ = 0, n_next_ = 0;
  LayerStatistics statistics_;
  CacheRanges cache_;
  std::optional<LayerMoments> layer_moments_;
  Observer observer_{*this};
  std::unique_ptr<LayerStream> stream_, quantized_;
  std::size_t n_layers_ = 0;
  std::optional<Hash128> fingerprint_, quantized_fingerprint_;
  std::optional<PlannedFile> inputs_, cached_, blocks_file_;
  std::optional<SingleFile> single_;
  std::optional<StatisticsDirectory> directory_;
  HiddenStates states_;
  std::optional<KeyedRows> inner_;
  std::vector<formats::CalibrationFile> moment_files_;
  std::uint64_t step_ = 0;
  std::vector<const CalibratedModule*> current_;
  CalibrationReport report_;
};

}  // namespace

CalibrationReport calibrate(const formats::Checkpoint& source, std::span<const Prompt> documents,
                            const std::filesystem::path& out, const RunOptions& options,
                            const CalibrationOptions& what) {
  return Calibration(source, documents, out, options, what).run();
}

}  // namespace ingot::verify
