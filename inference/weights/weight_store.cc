#include "inference/weights/weight_store.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/dialect.h"
#include "formats/experts/expert_views.h"
#include "formats/family/family.h"
#include "formats/family/family_check.h"
#include "formats/family/rule_scope.h"
#include "formats/family/text_names.h"
#include "inference/base/matrix.h"
#include "inference/kernels/quantized/quantized_matmul.h"
#include "inference/weights/held_bytes.h"
#include "inference/weights/native_activations.h"
#include "quantize/scheme.h"

namespace ingot::inference {

using formats::LogicalTensor;
using formats::Shape;

namespace {

struct UsualName {
  formats::Role role;
  std::string_view pattern;
};
constexpr std::array kUsualNames = {
    UsualName{formats::Role::kExpertGate,
              "model.layers.{layer}.mlp.experts.{expert}.gate_proj.weight"},
    UsualName{formats::Role::kExpertUp, "model.layers.{layer}.mlp.experts.{expert}.up_proj.weight"},
    UsualName{formats::Role::kExpertDown,
              "model.layers.{layer}.mlp.experts.{expert}.down_proj.weight"},
    UsualName{formats::Role::kExpertsGateUp, "model.layers.{layer}.mlp.experts.gate_up_proj"},
    UsualName{formats::Role::kExpertsDown, "model.layers.{layer}.mlp.experts.down_proj"}};

bool is_of(const formats::TensorRule& rule, const WeightPlace& place) {
  return rule.role == place.role.role && rule.fine == place.role.fine && rule.block == place.block;
}

Matrix copy_of(MatrixView<const float> x) {
  Matrix copy(x.rows, x.cols);
  for (std::size_t r = 0; r < x.rows; ++r) std::copy_n(x.row(r), x.cols, copy.row(r).begin());
  return copy;
}

// Rows of a matrix [outputs, inputs] are read. Biases of stacks, and scales under a number for each
// expert, are read only of single experts.
bool is_readable(const formats::Checkpoint& source, const LogicalTensor& tensor) {
  const formats::Role role = role_of(tensor);
  if (!formats::is_expert_stack(role)) return true;
  const formats::StoredParts& stored = tensor.encoding.stored;
  if (stored.has(formats::Part::kGlobal) &&
      formats::element_count(source.stored()[stored[formats::Part::kGlobal]].shape) != 1)
    return false;
  return (role == formats::Role::kExpertsGateUp || role == formats::Role::kExpertsDown) &&
         tensor.stack != formats::StackOrder::kInputMajor;
}

// A pattern of a family with its numbers in place.
std::string numbered_name(std::string_view pattern, const WeightPlace& place) {
  std::string name(pattern);
  const auto put = [&](std::string_view mark, std::optional<std::uint32_t> number) {
    const std::size_t at = name.find(mark);
    if (at != std::string::npos && number) name.replace(at, mark.size(), std::to_string(*number));
  };
  put(formats::kLayerMark, place.layer);
  put(formats::kExpertMark, place.expert);
  if (const auto mark = formats::key_mark(pattern); !mark.empty()) put(mark, place.part);
  return name;
}

}  // namespace

std::optional<formats::Checkpoint> with_readable_experts(const formats::Checkpoint& source) {
  const auto& tensors = source.tensors();
  const auto is_readable_here = [&](const LogicalTensor& tensor) {
    return is_readable(source, tensor);
  };
  if (std::ranges::all_of(tensors, is_readable_here)) return std::nullopt;
  if (source.slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "a rank's stacks of this family are not computed with (make the ranks with "
                "--experts separate)")
        .in_file(source.directory().string());
  }
  // The maker of the store keeps the source.
  std::shared_ptr<const formats::Checkpoint> seen(std::shared_ptr<void>(), &source);
  std::vector<std::uint32_t> turned;
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].stack == formats::StackOrder::kInputMajor) turned.push_back(i);
  }
  if (!turned.empty())
    seen = std::make_shared<const formats::Checkpoint>(formats::with_turned_stacks(seen, turned));
  return formats::with_single_experts(seen);
}

/// State behind a Linear, filled by WeightStore.
struct Linear::State {
  std::shared_ptr<const HeldBytes> memory;  ///< memory of this part, and perhaps of others with it
  std::uint64_t n_bytes = 0;                ///< bytes of this part
  ReadPart part;
  WeightRounding rounding = WeightRounding::kExact;
  /// How rows of x are quantized first; nullopt: not at all.
  std::optional<ActivationFormat> activations;
  /// Steps to whose multiples inputs and outputs are rounded where they are not quantized; 0: none.
  float input_step = 0, output_step = 0;
  InputObserver* observer = nullptr;  ///< called with the linear's input, as `name`, `matrix`
  std::string_view name;              ///< name of the source's logical tensor
  std::size_t matrix = 0;
};

Linear::Linear(std::shared_ptr<const State> state)
    : state_(std::move(state)), weight_(state_->part.weight) {}

void Linear::apply(MatrixView<const float> x, MatrixView<float> y, std::size_t threads) const {
  INGOT_CHECK(state_ && x.cols == cols() && y.cols == rows() && x.rows == y.rows);
  // Runs of rows may take the same x one after the other: the first speaks for all.
  if (state_->observer != nullptr && first_row_ == 0)
    state_->observer->see(state_->name, state_->matrix, x);
  if (!state_->activations) {
    if (state_->input_step > 0) {
      Matrix rounded = copy_of(x);
      round_to_steps(state_->input_step, rounded.view());
      apply_unquantized(rounded.view(), y, threads);
    } else {
      apply_unquantized(x, y, threads);
    }
    if (state_->output_step > 0) round_to_steps(state_->output_step, y);
    return;
  }
  if (x.rows == 0 || y.cols == 0) return;
  const QuantizedRows quantized = quantize_activations(x, *state_->activations);
  StaticInt8 fixed = state_->part.fixed;
  if (fixed.quant_bias != nullptr) fixed.quant_bias += first_row_;
  if (fixed.deq_scale != nullptr) fixed.deq_scale += first_row_;
  quantized_matmul(quantized, weight_, fixed, y, threads);
}

void Linear::apply_in_runs(std::size_t n, MatrixView<const float> x, MatrixView<float> y,
                           std::size_t threads) const {
  INGOT_CHECK(state_ && rows() % n == 0 && x.cols == n * cols() && y.cols == rows());
  const std::size_t height = rows() / n;
  for (std::size_t i = 0; i < n; ++i) {
    const MatrixView<const float> columns{x.data + i * cols(), x.rows, cols(), x.stride};
    if (state_->observer != nullptr && i > 0)
      state_->observer->see(state_->name, state_->matrix, columns);
    row_range(i * height, height)
        .apply(columns, {y.data + i * height, y.rows, height, y.stride}, threads);
  }
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

WeightStore::WeightStore(const formats::Checkpoint& source, Profile profile, std::size_t threads,
                         InputObserver* observer)
    : view_(with_readable_experts(source)),
      source_(view_ ? *view_ : source),
      profile_(profile),
      threads_(threads),
      observer_(observer),
      activations_(source.config(), source.dialect(), source.description()) {
  for (const LogicalTensor& tensor : source_.tensors()) {
    const auto [at, is_new] =
        by_name_.emplace(formats::text_model_name(tensor.name, source_.config().text), &tensor);
    const formats::TensorRule* rule = tensor.rule;
    if (rule != nullptr) {
      const WeightRole role = rule->fine ? WeightRole(*rule->fine) : WeightRole(rule->role);
      by_place_.emplace(WeightPlace{role, tensor.layer, tensor.expert, rule->block}, at->first);
    }
  }
}

std::string WeightStore::name_of(const WeightPlace& place) const {
  const WeightRole& role = place.role;
  const auto found = by_place_.find(place);
  if (found != by_place_.end()) return found->second;
  for (const formats::TensorRule& rule : source_.family().rules) {
    if (!is_of(rule, place) || !formats::is_in_layer(rule, source_.config(), place.layer)) continue;
    if (rule.pattern.find("{mtp}") != std::string_view::npos) continue;
    return numbered_name(rule.pattern, place);
  }
  const auto usual = std::ranges::find(kUsualNames, role.role, &UsualName::role);
  if (source_.family().rules.empty() && usual != kUsualNames.end())
    return numbered_name(usual->pattern, place);
  throw Error(ErrorCode::kMissingTensor,
              "the checkpoint has no tensor with the role {}{}{} (a file missing, or the "
              "config.json of another model?)",
              role.fine ? formats::fine_role_name(*role.fine) : formats::role_name(role.role),
              place.layer ? fmt::format(" in layer {}", *place.layer) : "",
              place.expert ? fmt::format(" for expert {}", *place.expert) : "");
}

bool WeightStore::has(const WeightPlace& place) const {
  if (!source_.family().rules.empty()) return by_place_.contains(place);
  return std::ranges::find(kUsualNames, place.role.role, &UsualName::role) != kUsualNames.end() &&
         by_name_.contains(name_of(place));
}

bool WeightStore::expects(const WeightPlace& place) const {
  return has(place) ||
         std::ranges::any_of(source_.family().rules, [&](const formats::TensorRule& rule) {
           return is_of(rule, place) && formats::is_in_layer(rule, source_.config(), place.layer) &&
                  formats::promise_of(rule, source_.config(), place.layer) ==
                      formats::Promise::kRequired;
         });
}

bool WeightStore::has_rows_in_turn(std::string_view name) const {
  const formats::TensorRule* rule = find(name).rule;
  return rule != nullptr && rule->gate_up == formats::GateUpOrder::kInterleaved;
}

const LogicalTensor& WeightStore::find(std::string_view name) const {
  const auto found = by_name_.find(name);
  if (found == by_name_.end()) {
    throw Error(ErrorCode::kMissingTensor,
                "is not in the checkpoint (a file missing, or the config.json of another model?)")
        .in_tensor(name);
  }
  return *found->second;
}

const LogicalTensor& WeightStore::find(std::string_view name, const Shape& shape) const {
  const LogicalTensor& tensor = find(name);
  if (tensor.shape == shape) return tensor;
  throw Error(ErrorCode::kShapeMismatch,
              "has shape {}, the model needs {} (the config.json of another model?)",
              formats::shape_text(tensor.shape), formats::shape_text(shape))
      .in_tensor(name);
}

// A slice is read as a whole of its own. Where it would be as large as the whole, it is the whole.
PartLayout WeightStore::layout_of(const LinearPart& part) const {
  INGOT_CHECK(part.whole.size() == 3 ? part.matrix < part.whole.front()
                                     : part.whole.size() == 2 && part.matrix == 0);
  const bool with_static = profile_ == Profile::kNative;
  Shape slice = part.whole;
  slice[slice.size() - 2] = part.rows.count;
  slice.back() = part.cols.count;
  const LogicalTensor& tensor = find(part.name);
  if (source_.slicing() == nullptr || tensor.shape != slice)
    return part_layout(find(part.name, part.whole), part, with_static);
  LinearPart all = part;
  all.whole = slice;
  all.rows.first = all.cols.first = 0;
  return part_layout(find(part.name, slice), all, with_static);
}

// Chooses how a weight and its inputs are rounded and quantized when it is applied.
void WeightStore::choose_arithmetic(const LogicalTensor& tensor, const LinearPart& part,
                                    Linear::State& linear) const {
  linear.rounding = profile_ == Profile::kF32 ? WeightRounding::kExact : WeightRounding::kBf16;
  if (profile_ != Profile::kNative) return;
  if (!is_quantized(tensor)) return;
  linear.activations = native_activations(source_, tensor, linear.matrix,
                                          activations_.of(tensor.name, tensor.encoding));
  // A weight that is quantized only for its size is computed with its exact decoded values.
  if (linear.activations) return;
  linear.rounding = WeightRounding::kExact;
  linear.input_step = native_step(source_, tensor, formats::Part::kInputScale);
  linear.output_step = native_step(source_, tensor, formats::Part::kOutputScale);
  if (linear.output_step > 0 && part.cols.count < part.whole.back()) {
    throw Error(ErrorCode::kUnsupported,
                "has outputs that are rounded to steps, which is done to their sum over all ranks "
                "(leave --tp at 1, or run it with --profile bf16)")
        .in_tensor(tensor.name);
  }
}

std::vector<float> WeightStore::vector(std::string_view name, const Shape& shape) const {
  const LogicalTensor& tensor = find(name, shape);
  const formats::SchemeFacts& facts = formats::scheme_facts(tensor.encoding.scheme);
  if (facts.quantized || quantize::find_scheme(tensor.encoding.scheme) == nullptr) {
    throw Error(ErrorCode::kUnsupported, "is {}, but must be BF16, F16 or F32 here", facts.name)
        .in_tensor(name);
  }
  const std::uint32_t index = tensor.encoding.stored.weight();
  std::vector<std::byte> bytes(source_.stored()[index].n_bytes);
  source_.read(index, 0, bytes);
  bytes_read_ += bytes.size();
  const std::size_t n = bytes.size() * 8 / facts.code_bits;
  std::vector<float> values(n);
  quantize::decode({.scheme = facts.id, .codes = bytes.data(), .rows = 1, .cols = n},
                   {.data = values.data(), .rows = 1, .cols = n, .stride = n});
  const auto bad = std::find_if_not(values.begin(), values.end(),
                                    [](float value) { return std::isfinite(value); });
  if (bad != values.end()) {
    throw Error(ErrorCode::kNonFinite, "holds {} at position {} (fetch the file again)", *bad,
                bad - values.begin())
        .in_tensor(name);
  }
  return values;
}

std::vector<float> WeightStore::vector_part(std::string_view name, std::size_t n,
                                            Range mine) const {
  if (source_.slicing() != nullptr && find(name).shape == Shape{mine.count})
    return vector(name, {mine.count});
  const std::vector<float> whole = vector(name, {n});
  const auto first = whole.begin() + static_cast<std::ptrdiff_t>(mine.first);
  return {first, first + static_cast<std::ptrdiff_t>(mine.count)};
}

std::vector<std::uint64_t> WeightStore::whole_numbers(std::string_view name,
                                                      const Shape& shape) const {
  const std::uint32_t index = find(name, shape).encoding.stored.weight();
  const formats::StoredTensor& stored = source_.stored()[index];
  const bool is_wide = stored.dtype == formats::DType::kI64;
  if (!is_wide && stored.dtype != formats::DType::kI32) {
    throw Error(ErrorCode::kUnsupported, "is {}, but must be I64 or I32 here",
                formats::dtype_name(stored.dtype))
        .in_tensor(name);
  }
  std::vector<std::byte> bytes(stored.n_bytes);
  source_.read(index, 0, bytes);
  bytes_read_ += bytes.size();
  const std::size_t width = is_wide ? 8 : 4;
  std::vector<std::uint64_t> numbers(bytes.size() / width);
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    std::int64_t wide = 0;
    std::int32_t narrow = 0;
    if (is_wide) {
      std::memcpy(&wide, bytes.data() + i * width, width);
    } else {
      std::memcpy(&narrow, bytes.data() + i * width, width);
      wide = narrow;
    }
    if (wide < 0) {
      throw Error(ErrorCode::kCorrupt,
                  "holds {} at position {}, but must be 0 or more (fetch the file again)", wide, i)
          .in_tensor(name);
    }
    numbers[i] = static_cast<std::uint64_t>(wide);
  }
  return numbers;
}

std::vector<std::uint32_t> WeightStore::indices(std::string_view name, const Shape& shape,
                                                std::size_t limit) const {
  const std::vector<std::uint64_t> numbers = whole_numbers(name, shape);
  std::vector<std::uint32_t> indices;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (numbers[i] >= limit) {
      throw Error(ErrorCode::kCorrupt,
                  "holds {} at position {}, but must be below {} (fetch the file again)",
                  numbers[i], i, limit)
          .in_tensor(name);
    }
    indices.push_back(static_cast<std::uint32_t>(numbers[i]));
  }
  return indices;
}

Linear WeightStore::linear(std::string_view name, std::size_t rows_of_whole,
                           std::size_t cols_of_whole, Range rows, Range cols) const {
  return read({.name = std::string(name),
               .whole = {rows_of_whole, cols_of_whole},
               .rows = rows,
               .cols = cols},
              threads_);
}

std::vector<Linear> WeightStore::linears(std::string_view name,
                                         std::span<const SectionRows> sections,
                                         std::size_t cols) const {
  std::size_t n_rows = 0, n_mine = 0;
  for (const auto& [count, mine] : sections) {
    n_rows += count;
    n_mine += mine.count;
  }
  const bool are_mine =
      n_mine == n_rows || (source_.slicing() != nullptr && shape_of(name) == Shape{n_mine, cols});
  std::vector<Linear> linears;
  std::size_t at = 0;
  // One reading, so that an observer sees each input once.
  if (are_mine) {
    const Linear all = linear(name, n_mine, cols);
    for (const auto& [count, mine] : sections)
      linears.push_back(all.row_range(std::exchange(at, at + mine.count), mine.count));
    return linears;
  }
  for (const auto& [count, mine] : sections) {
    linears.push_back(linear(name, n_rows, cols, {at + mine.first, mine.count}, {0, cols}));
    at += count;
  }
  return linears;
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
    layouts.push_back(layout_of(part));
    const LogicalTensor& tensor = find(part.name);
    states.push_back(std::make_shared<Linear::State>());
    states.back()->n_bytes = layouts.back().n_bytes;
    states.back()->observer = observer_;
    states.back()->name = tensor.name;
    states.back()->matrix = part.matrix;
    choose_arithmetic(tensor, part, *states.back());
    n_bytes += layouts.back().n_bytes;
  }
  const auto memory = std::make_shared<const HeldBytes>(n_bytes);
  std::vector<Linear> linears;
  std::size_t at = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    states[i]->memory = memory;
    states[i]->part = read_part(source_, find(parts[i].name), layouts[i], memory->data() + at,
                                threads, bytes_read_);
    at += layouts[i].n_bytes;
    linears.push_back(Linear(std::move(states[i])));
  }
  return linears;
}

std::uint64_t WeightStore::bytes_of(const LinearPart& part) const {
  return layout_of(part).n_bytes;
}

}  // namespace ingot::inference
