#include "verify/layers/reference.h"

#include <algorithm>
#include <cmath>
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

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/container/dtype.h"
#include "formats/container/safetensors.h"
#include "formats/container/tensor.h"
#include "inference/base/matrix.h"
#include "inference/family/model_family.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/generate/sampling.h"
#include "inference/model/layer_stream.h"
#include "inference/model/step/step.h"
#include "verify/layers/layer_check.h"
#include "verify/outputs/divergence.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::DType;
using formats::MatrixView;
using formats::StoredTensor;
using inference::LayerStream;
using inference::Matrix;
using inference::ModelSpec;
using inference::RunMemory;

namespace {

constexpr std::string_view kIds = "input_ids", kHidden = "hidden.", kLogits = "logits",
                           kLastLogits = "logits_last", kGreedy = "greedy";

[[noreturn]] void wrong(ErrorCode code, const StoredTensor& tensor, std::string message) {
  throw Error(code, std::move(message)).in_tensor(tensor.name);
}

std::string_view after_prefix(std::string_view name) {
  // "prompt0.hidden.3": a prefix ends where a known name begins.
  for (const std::string_view known : {kIds, kHidden, kLastLogits, kLogits, kGreedy}) {
    const std::size_t at = name.rfind(known);
    if (at == std::string_view::npos || (at > 0 && name[at - 1] != '.')) continue;
    const std::string_view rest = name.substr(at);
    if (known == kHidden || rest == known) return rest;
  }
  return {};
}

std::optional<std::size_t> hidden_index(std::string_view name) {
  if (!name.starts_with(kHidden)) return std::nullopt;
  return number_from<std::size_t>(name.substr(kHidden.size()));
}

void require_shape(const StoredTensor& tensor, const formats::Shape& shape, const char* why) {
  if (tensor.dtype != DType::kF32) {
    wrong(ErrorCode::kCorrupt, tensor,
          fmt::format("is {}, but activations are recorded as F32",
                      formats::dtype_name(tensor.dtype)));
  }
  if (tensor.shape == shape) return;
  wrong(ErrorCode::kShapeMismatch, tensor,
        fmt::format("is {}, but must be {} ({})", formats::shape_text(tensor.shape),
                    formats::shape_text(shape), why));
}

/// The place of the activations of one prompt in the file.
struct RecordedPrompt {
  std::string prefix;  ///< "prompt0.", or empty
  std::vector<std::int32_t> ids;
  std::map<std::size_t, formats::StoredTensor> hidden;  ///< [T, D], by L
  std::optional<formats::StoredTensor> logits;          ///< [T, V]
  std::optional<formats::StoredTensor> logits_last;     ///< [V] of the last token
  std::vector<std::int32_t> greedy;                     ///< empty: not recorded
};

/// A safetensors file with the results of another program: per prompt, under a prefix of its own or
/// none, `input_ids` [T], and as far as they are there `hidden.L` [T, D] (0 is the embedding, L the
/// output of layer L - 1 before any final norm), `logits` [T, V], `logits_last` [V], `greedy` [n].
/// Activations are F32, ids I64 or I32. Other names are ignored.
class RecordedActivations {
 public:
  /// Reads ids; of the rest the header. kCorrupt naming the tensor for another kind of file,
  /// kShapeMismatch for shapes that contradict `input_ids` or the model.
  RecordedActivations(const std::filesystem::path& path, const inference::ModelSpec& spec)
      : file_(Fd::open_for_reading(path)), spec_(spec) {
    try {
      const formats::SafetensorsHeader header = formats::read_safetensors_header(file_);
      for (const auto& [key, value] : header.metadata) {
        if (key == "source" && !value.empty()) recorded_by_ = value;
      }
      std::map<std::string, std::vector<const StoredTensor*>> by_prefix;
      for (const StoredTensor& tensor : header.tensors) {
        const std::string_view known = after_prefix(tensor.name);
        if (known.empty()) continue;
        by_prefix[tensor.name.substr(0, tensor.name.size() - known.size())].push_back(&tensor);
      }
      for (const auto& [prefix, tensors] : by_prefix) {
        const auto first = std::find_if(
            tensors.begin(), tensors.end(),
            [&](const StoredTensor* tensor) { return after_prefix(tensor->name) == kIds; });
        if (first == tensors.end()) {
          wrong(ErrorCode::kCorrupt, *tensors.front(),
                fmt::format("is here without '{}{}'", prefix, kIds));
        }
        RecordedPrompt& prompt = prompts_.emplace_back();
        prompt.prefix = prefix;
        prompt.ids = ids(**first);
        if (prompt.ids.empty()) wrong(ErrorCode::kCorrupt, **first, "holds no token");
        for (const StoredTensor* tensor : tensors) {
          take(prompt, std::string_view(tensor->name).substr(prefix.size()), *tensor);
        }
      }
      // prompt2 before prompt10.
      std::sort(prompts_.begin(), prompts_.end(), [](const auto& a, const auto& b) {
        return std::pair(a.prefix.size(), a.prefix) < std::pair(b.prefix.size(), b.prefix);
      });
      if (prompts_.empty())
        throw Error(ErrorCode::kCorrupt, "holds no '{}', so no activations", kIds);
    } catch (Error& error) {
      error.in_file(path.filename().string());
      throw;
    }
  }

  [[nodiscard]] const std::vector<RecordedPrompt>& prompts() const { return prompts_; }
  /// `source` of the file's metadata, else "an unnamed program".
  [[nodiscard]] const std::string& recorded_by() const { return recorded_by_; }
  /// Rows [first, first + count) of a matrix; a vector is one row. kNonFinite naming the tensor.
  [[nodiscard]] Matrix rows(const StoredTensor& tensor, std::size_t first,
                            std::size_t count) const {
    const bool is_row = tensor.shape.size() == 1;
    const std::size_t cols = tensor.n_bytes / sizeof(float) / (is_row ? 1 : tensor.shape[0]);
    Matrix rows(count, cols);
    file_.read_exact(std::as_writable_bytes(rows.values()),
                     tensor.offset + first * cols * sizeof(float));
    const auto values = rows.values();
    if (!std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); })) {
      throw Error(ErrorCode::kNonFinite, "holds NaN or infinite values")
          .in_file(std::filesystem::path(file_.path()).filename().string())
          .in_tensor(tensor.name);
    }
    return rows;
  }

 private:
  [[nodiscard]] std::vector<std::int32_t> ids(const StoredTensor& tensor) const {
    const bool is_wide = tensor.dtype == DType::kI64;
    if (tensor.shape.size() != 1 || (!is_wide && tensor.dtype != DType::kI32)) {
      wrong(ErrorCode::kCorrupt, tensor, "is not a list of I64 or I32 token ids");
    }
    std::vector<std::int64_t> values(tensor.shape[0]);
    if (is_wide) {
      file_.read_exact(std::as_writable_bytes(std::span(values)), tensor.offset);
    } else {
      std::vector<std::int32_t> narrow(values.size());
      file_.read_exact(std::as_writable_bytes(std::span(narrow)), tensor.offset);
      std::copy(narrow.begin(), narrow.end(), values.begin());
    }
    std::vector<std::int32_t> ids;
    for (const std::int64_t value : values) {
      if (value < 0 || static_cast<std::uint64_t>(value) >= spec_.vocab) {
        wrong(ErrorCode::kCorrupt, tensor,
              fmt::format("token id {} is not within the vocabulary of {}", value, spec_.vocab));
      }
      ids.push_back(static_cast<std::int32_t>(value));
    }
    return ids;
  }

  void take(RecordedPrompt& prompt, std::string_view name, const StoredTensor& tensor) {
    const std::uint64_t n_tokens = prompt.ids.size();
    if (const auto index = hidden_index(name)) {
      if (*index > spec_.n_main) {
        wrong(ErrorCode::kShapeMismatch, tensor,
              fmt::format("is beyond the {} layers of the model", spec_.n_main));
      }
      if (*index > 0 && spec_.ends.hyper) {
        require_shape(tensor, {n_tokens, spec_.ends.hyper->streams, spec_.hidden},
                      "tokens of input_ids, streams, hidden size");
      } else {
        require_shape(tensor, {n_tokens, spec_.hidden}, "tokens of input_ids, hidden size");
      }
      prompt.hidden[*index] = tensor;
    } else if (name == kLogits) {
      require_shape(tensor, {n_tokens, spec_.vocab}, "tokens of input_ids, vocabulary");
      prompt.logits = tensor;
    } else if (name == kLastLogits) {
      require_shape(tensor, {spec_.vocab}, "vocabulary");
      prompt.logits_last = tensor;
    } else if (name == kGreedy) {
      prompt.greedy = ids(tensor);
    }
  }

  Fd file_;
  inference::ModelSpec spec_;
  std::string recorded_by_ = "an unnamed program";
  std::vector<RecordedPrompt> prompts_;
};

std::vector<Prompt> prompts_of(const RecordedActivations& recorded) {
  std::vector<Prompt> prompts;
  for (const RecordedPrompt& prompt : recorded.prompts()) prompts.push_back({.ids = prompt.ids});
  return prompts;
}

// Layers of a model beside the recorded activations. Two sets of sequences pass at once, as in
// compare_layers, the isolated one first.
class LayersBeside {
 public:
  LayersBeside(const Checkpoint& model, const ModelSpec& spec, const RecordedActivations& recorded,
               const RunOptions& options)
      : recorded_(recorded),
        options_(options),
        prompts_(prompts_of(recorded)),
        spans_(spans_of(prompts_, spec)),
        rows_(rows_of(spans_, 2)),
        stream_(model, {.profile = options.output_profile,
                        .threads = options.threads,
                        .weight_limit =
                            inference::weight_limit(need_of(model, spec), options.mem_limit)}) {
    report_.source_profile = "recorded";
    report_.output_profile = inference::profile_name(options.output_profile);
    report_.prompts = prompts_.size();
    report_.tokens = n_rows();
  }

  LayersReport run() {
    const std::vector<inference::Row> once = rows_of(spans_, 1);
    const Matrix embedded = stream_.embed(once);
    Matrix both(2 * n_rows(), embedded.cols());
    for (const auto half : {both.values().first(embedded.values().size()),
                            both.values().last(embedded.values().size())}) {
      std::ranges::copy(embedded.values(), half.begin());
    }
    const std::size_t n_layers = stream_.spec().n_main;
    inference::Taps shown;
    shown.hidden = [&](std::size_t index, const Matrix& states) { compare(index - 1, states); };
    for (std::size_t l = 0; l < n_layers; ++l) {
      // Within a loop the states that were recorded are those of the last visit.
      if (!is_within_loop(l)) isolate(l, both);
      stream_.layer(l, both, rows_, shown);
      if (options_.progress) options_.progress(l + 1, n_layers);
    }
    report_.logits = logits(half_of(both, 1));
    return std::move(report_);
  }

 private:
  [[nodiscard]] std::size_t n_rows() const { return row_count(spans_); }

  [[nodiscard]] RunMemory need_of(const Checkpoint& model, const ModelSpec& spec) const {
    std::vector<std::size_t> lengths = lengths_of(spans_);
    lengths.insert(lengths.end(), lengths.begin(), lengths.end());
    RunMemory need =
        inference::stream_memory(model, options_.output_profile, lengths, options_.threads);
    // Both sets, the recorded states after a layer, and logits of both sides.
    need.scratch +=
        (4 * n_rows() * spec.stream_width() + 2 * kHeadRows * spec.vocab) * sizeof(float);
    return need;
  }

  // A layer of a loop whose input is the output of one that is visited again.
  [[nodiscard]] bool is_within_loop(std::size_t l) const {
    return stream_.spec().visits(l) > 1 && l > stream_.spec().loop->first;
  }

  // The recorded states before layer l; where there is none, the model's own. Programs show their
  // embedding before or behind its factors, so layer 0 begins with the model's own one, too.
  void isolate(std::size_t l, Matrix& both) const {
    const auto own = both.values().last(both.values().size() / 2);
    std::ranges::copy(own, both.values().begin());
    for (const PromptSpan& span : spans_) {
      const auto& hidden = recorded_.prompts()[span.prompt].hidden;
      const auto found = hidden.find(l);
      if (l == 0 || found == hidden.end()) continue;
      const Matrix states = recorded_.rows(found->second, 0, span.ids.size());
      // Values that layers hand on behind the streams stay.
      for (std::size_t i = 0; i < states.rows(); ++i)
        std::ranges::copy(states.row(i), both.row(span.first + i).begin());
    }
  }

  void compare(std::size_t l, const Matrix& shown) {
    Matrix wanted(n_rows(), shown.cols());
    std::vector<PromptSpan> compared;
    for (const PromptSpan& span : spans_) {
      const auto& hidden = recorded_.prompts()[span.prompt].hidden;
      const auto found = hidden.find(l + 1);
      if (found == hidden.end()) continue;
      const Matrix states = recorded_.rows(found->second, 0, span.ids.size());
      std::ranges::copy(states.values(), wanted.row(span.first).begin());
      compared.push_back(span);
    }
    if (compared.empty()) return;
    report_.layers.push_back(
        {.layer = l,
         .isolated = similarity(wanted.view(), half_of(shown, 0), compared, options_.threads),
         .accumulated = similarity(wanted.view(), half_of(shown, 1), compared, options_.threads)});
  }

  LogitAgreement logits(MatrixView<const float> hidden) {
    std::vector<TokenDivergence> tokens;
    for (const PromptSpan& span : spans_) {
      const RecordedPrompt& prompt = recorded_.prompts()[span.prompt];
      if (!prompt.logits && !prompt.logits_last) continue;
      // Only the last token, or all.
      const std::size_t skipped = prompt.logits ? 0 : span.ids.size() - 1;
      const StoredTensor& tensor = prompt.logits ? *prompt.logits : *prompt.logits_last;
      const PromptSpan own{.prompt = span.prompt, .first = 0, .ids = span.ids.subspan(skipped)};
      const auto recorded = [&](std::size_t first, std::size_t count) {
        return recorded_.rows(tensor, first, count);
      };
      const auto is = [&](std::size_t first, std::size_t count) {
        return stream_.head(
            stream_.final_norm(copy_rows(hidden, span.first + skipped + first, count)));
      };
      for (TokenDivergence token :
           compare_heads(recorded, is, {&own, 1}, kHeadRows, options_.threads)) {
        token.token += skipped;
        tokens.push_back(token);
      }
    }
    return logit_agreement(tokens);
  }

  static constexpr std::size_t kHeadRows = 256;

  const RecordedActivations& recorded_;
  const RunOptions& options_;
  std::vector<Prompt> prompts_;
  std::vector<PromptSpan> spans_;
  std::vector<inference::Row> rows_;
  LayerStream stream_;
  LayersReport report_;
};

std::vector<RecordedAnswer> answers_of(const RecordedActivations& recorded) {
  std::vector<RecordedAnswer> answers;
  for (const RecordedPrompt& prompt : recorded.prompts()) {
    if (prompt.greedy.empty()) continue;
    RecordedAnswer& answer = answers.emplace_back();
    answer.prompt = prompt.ids;
    answer.tokens = prompt.greedy;
    if (prompt.logits_last) {
      answer.first_logits = recorded.rows(*prompt.logits_last, 0, 1);
    } else if (prompt.logits) {
      answer.first_logits = recorded.rows(*prompt.logits, prompt.ids.size() - 1, 1);
    }
  }
  return answers;
}

}  // namespace

ReferenceReport compare_reference(const Checkpoint& model, const std::filesystem::path& recorded,
                                  const RunOptions& options) {
  const ModelSpec spec = inference::model_spec(model.family(), model.config());
  const RecordedActivations activations(recorded, spec);
  ReferenceReport report{.recorded_by = activations.recorded_by()};
  report.layers = LayersBeside(model, spec, activations, options).run();
  const std::vector<RecordedAnswer> answers = answers_of(activations);
  if (!answers.empty()) report.greedy = compare_recorded_answers(model, answers, options);
  return report;
}

}  // namespace ingot::verify
