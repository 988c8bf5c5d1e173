#include "inference/weights/weight_store.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/source_activations.h"
#include "inference/weights/linear.h"
#include "inference/weights/linear_state.h"
#include "inference/weights/native_activations.h"
#include "inference/weights/part_reader.h"
#include "quantize/scheme.h"

namespace ingot::inference {

using formats::LogicalTensor;
using formats::Shape;

Linear::Linear(std::shared_ptr<const State> state)
    : state_(std::move(state)), weight_(state_->part.weight) {}

void Linear::apply(MatrixView<const float> x, MatrixView<float> y, std::size_t threads) const {
  INGOT_CHECK(state_ && x.cols == cols() && y.cols == rows() && x.rows == y.rows);
  // Runs of rows may take the same x one after the other: the first speaks for all.
  if (state_->observer != nullptr && first_row_ == 0)
    state_->observer->see(state_->name, state_->matrix, x);
  if (!state_->activations) {
    apply_unquantized(x, y, threads);
    return;
  }
  if (x.rows == 0 || y.cols == 0) return;
  const QuantizedRows quantized = quantize_activations(x, *state_->activations);
  StaticInt8 fixed = state_->part.fixed;
  if (fixed.quant_bias != nullptr) fixed.quant_bias += first_row_;
  if (fixed.deq_scale != nullptr) fixed.deq_scale += first_row_;
  quantized_matmul(quantized, weight_, fixed, y, threads);
}

void Linear::apply_unquantized(MatrixView<const float> x, MatrixView<float> y,
                               std::size_t threads) const {
  INGOT_CHECK(state_ && x.cols == cols() && y.cols == rows() && x.rows == y.rows);
  matmul(x, weight_, state_->rounding, y, threads);
}

WeightRounding Linear::rounding() const {
  INGOT_CHECK(state_ != nullptr);
  return state_->rounding;
}

Linear Linear::row_range(std::size_t first, std::size_t n) const {
  INGOT_CHECK(first <= rows() && n <= rows() - first);
  Linear part = *this;
  part.weight_ = weight_.row_range(first, n);
  part.first_row_ += first;
  return part;
}

std::uint64_t Linear::n_bytes() const {
  return state_ ? state_->n_bytes : 0;
}

struct WeightStore::State {
  State(const formats::Checkpoint& checkpoint, Profile chosen, std::size_t most_threads,
        InputObserver* onlooker)
      : source(checkpoint),
        profile(chosen),
        threads(most_threads),
        observer(onlooker),
        activations(checkpoint.config(), checkpoint.dialect(), checkpoint.description()) {
    by_name.reserve(source.tensors().size());
    for (const LogicalTensor& tensor : source.tensors()) by_name.emplace(tensor.name, &tensor);
  }

  [[nodiscard]] const LogicalTensor& find(std::string_view name) const {
    const auto found = by_name.find(name);
    if (found != by_name.end()) return *found->second;
    throw Error(ErrorCode::kMissingTensor,
                "is not in the checkpoint (a file missing, or the config.json of another model?)")
        .in_tensor(name);
  }

  [[nodiscard]] const LogicalTensor& find(std::string_view name, const Shape& shape) const {
    const LogicalTensor& tensor = find(name);
    if (tensor.shape == shape) return tensor;
    throw Error(ErrorCode::kShapeMismatch,
                fmt::format("has shape {}, the model needs {} (the config.json of another model?)",
                            formats::shape_text(tensor.shape), formats::shape_text(shape)))
        .in_tensor(name);
  }

  [[nodiscard]] PartLayout layout(const LogicalTensor& tensor, const PartRange& range) const {
    return part_layout(tensor, range, profile == Profile::kNative);
  }

  /// What is rounded and quantized when the weight is applied.
  void choose_arithmetic(const LogicalTensor& tensor, Linear::State& linear) const;

  const formats::Checkpoint& source;
  Profile profile;
  std::size_t threads;
  InputObserver* observer;
  formats::SourceActivations activations;
  std::unordered_map<std::string_view, const LogicalTensor*> by_name;
  mutable std::atomic<std::uint64_t> bytes_read = 0;
};

void WeightStore::State::choose_arithmetic(const LogicalTensor& tensor,
                                           Linear::State& linear) const {
  linear.rounding = profile == Profile::kF32 ? WeightRounding::kExact : WeightRounding::kBf16;
  if (profile != Profile::kNative) return;
  if (!formats::scheme_facts(tensor.encoding.scheme).quantized) return;
  linear.activations =
      native_activations(source, tensor, activations.of(tensor.name, tensor.encoding));
  // A weight that is quantized for its size alone is computed with as what it decodes to.
  if (!linear.activations) linear.rounding = WeightRounding::kExact;
}

WeightStore::WeightStore(const formats::Checkpoint& source, Profile profile, std::size_t threads,
                         InputObserver* observer)
    : state_(std::make_unique<State>(source, profile, threads, observer)) {}
WeightStore::~WeightStore() = default;

const formats::Checkpoint& WeightStore::source() const {
  return state_->source;
}

Profile WeightStore::profile() const {
  return state_->profile;
}

bool WeightStore::has(std::string_view name) const {
  return state_->by_name.contains(name);
}

std::vector<float> WeightStore::vector(std::string_view name, const Shape& shape) const {
  const LogicalTensor& tensor = state_->find(name, shape);
  const formats::SchemeFacts& facts = formats::scheme_facts(tensor.encoding.scheme);
  const quantize::Scheme* scheme = quantize::find_scheme(tensor.encoding.scheme);
  if (facts.quantized || scheme == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("is {}, but must be BF16, F16 or F32 here", facts.name))
        .in_tensor(name);
  }
  const std::uint32_t index = tensor.encoding.stored.weight();
  std::vector<std::byte> bytes(state_->source.stored()[index].n_bytes);
  state_->source.read(index, 0, bytes);
  state_->bytes_read += bytes.size();
  const std::size_t n = bytes.size() * 8 / facts.code_bits;
  std::vector<float> values(n);
  scheme->decode({.weight = bytes.data(), .rows = 1, .cols = n, .rows_per_matrix = 1},
                 {.data = values.data(), .rows = 1, .cols = n, .stride = n});
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    throw Error(ErrorCode::kNonFinite, fmt::format("holds {} at position {} (fetch the file again)",
                                                   *bad, bad - values.begin()))
        .in_tensor(name);
  }
  return values;
}

Linear WeightStore::linear(std::string_view name, std::size_t rows_of_whole,
                           std::size_t cols_of_whole, Range rows, Range cols) const {
  return read({.name = name, .whole = {rows_of_whole, cols_of_whole}, .rows = rows, .cols = cols},
              state_->threads);
}

Linear WeightStore::read(const LinearPart& part, std::size_t threads) const {
  return read(std::span(&part, 1), threads).front();
}

std::vector<Linear> WeightStore::read(std::span<const LinearPart> parts,
                                      std::size_t threads) const {
  std::vector<PartLayout> layouts;
  std::vector<std::shared_ptr<Linear::State>> states;
  std::size_t n_bytes = 0;
  for (const LinearPart& part : parts) {
    const LogicalTensor& tensor = state_->find(part.name, part.whole);
    INGOT_CHECK(part.whole.size() == 3 ? part.matrix < part.whole.front()
                                       : part.whole.size() == 2 && part.matrix == 0);
    layouts.push_back(
        state_->layout(tensor, {.matrix = part.matrix, .rows = part.rows, .cols = part.cols}));
    states.push_back(std::make_shared<Linear::State>());
    states.back()->n_bytes = layouts.back().n_bytes;
    states.back()->observer = state_->observer;
    states.back()->name = tensor.name;
    states.back()->matrix = part.matrix;
    state_->choose_arithmetic(tensor, *states.back());
    n_bytes += layouts.back().n_bytes;
  }
  const auto memory = std::make_shared<const HeldBytes>(n_bytes);
  std::vector<Linear> linears;
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    states[i]->memory = memory;
    states[i]->part = read_part(state_->source, state_->find(parts[i].name), layouts[i],
                                memory->data() + at, threads, state_->bytes_read);
    at += layouts[i].n_bytes;
    linears.push_back(Linear(std::move(states[i])));
  }
  return linears;
}

std::uint64_t WeightStore::bytes_of(const LinearPart& part) const {
  const LogicalTensor& tensor = state_->find(part.name, part.whole);
  return state_->layout(tensor, {.matrix = part.matrix, .rows = part.rows, .cols = part.cols})
      .n_bytes;
}

std::uint64_t WeightStore::bytes_read() const {
  return state_->bytes_read;
}

}  // namespace ingot::inference
