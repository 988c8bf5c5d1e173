#include "verify/weights/stack_sides.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"
#include "verify/weights/weight_bands.h"

namespace ingot::verify {
namespace {

using formats::LogicalTensor;
using formats::Role;
using formats::StackOrder;

constexpr std::uint64_t kMostExperts = 16, kLeastExperts = 3;
constexpr std::uint64_t kMostElements = std::uint64_t{1} << 26;
constexpr std::uint64_t kElementsAtOnce = std::uint64_t{1} << 20;
constexpr double kDeviations = 3, kSureDeviations = 6;
// Never surer than a report can say with four digits.
constexpr double kSurest = 0.9999;

/// Strengths of the channels of one expert on both sides of its matrix.
struct Strengths {
  std::vector<double> rows, cols;
};

Strengths strengths_of(const formats::Checkpoint& source, const LogicalTensor& stack,
                       std::uint64_t expert) {
  const std::uint64_t n_rows = stack.shape[1], n_cols = stack.shape[2];
  Strengths found{.rows = std::vector<double>(n_rows), .cols = std::vector<double>(n_cols)};
  std::optional<formats::ScaleReader> scales;
  if (is_coded(stack.encoding.scheme))
    scales.emplace(source, stack, formats::ScalePolicy{.allow_zero = true});
  const std::uint64_t step = std::max<std::uint64_t>(kElementsAtOnce / n_cols / 128 * 128, 128);
  std::vector<std::byte> codes;
  std::vector<float> values;
  for (std::uint64_t row = 0; row < n_rows; row += step) {
    const std::uint64_t n = std::min(step, n_rows - row);
    const EncodedBand band = read_band({.source = source, .tensor = stack},
                                       {.row = expert * n_rows + row, .rows = n, .cols = n_cols},
                                       scales ? &*scales : nullptr, codes);
    values.resize(n * n_cols);
    quantize::decode(band.run,
                     {.data = values.data(), .rows = n, .cols = n_cols, .stride = n_cols});
    for (std::uint64_t i = 0; i < n; ++i) {
      for (std::uint64_t j = 0; j < n_cols; ++j) {
        const double value = values[i * n_cols + j];
        found.rows[row + i] += value * value;
        found.cols[j] += value * value;
      }
    }
  }
  for (std::vector<double>* side : {&found.rows, &found.cols}) {
    for (double& strength : *side) strength = std::log(strength + 1e-30);
  }
  return found;
}

/// Makes the mean 0 and the length 1, of each of so many equal parts.
void normalize(std::vector<double>& side, std::size_t n_parts) {
  const std::size_t length = side.size() / n_parts;
  double squares = 0;
  for (std::size_t part = 0; part < n_parts; ++part) {
    const auto begin = side.begin() + static_cast<std::ptrdiff_t>(part * length);
    const auto end = part + 1 == n_parts ? side.end() : begin + static_cast<std::ptrdiff_t>(length);
    double sum = 0;
    for (auto at = begin; at != end; ++at) sum += *at;
    const double mean = sum / static_cast<double>(end - begin);
    for (auto at = begin; at != end; ++at) {
      *at -= mean;
      squares += *at * *at;
    }
  }
  for (double& strength : side) strength /= std::sqrt(squares + 1e-300);
}

/// Mean correlation over all pairs.
double agreement(const std::vector<const std::vector<double>*>& sides) {
  double sum = 0;
  std::size_t n_pairs = 0;
  for (std::size_t a = 0; a < sides.size(); ++a) {
    for (std::size_t b = a + 1; b < sides.size(); ++b, ++n_pairs) {
      for (std::size_t i = 0; i < sides[a]->size(); ++i) sum += (*sides[a])[i] * (*sides[b])[i];
    }
  }
  return sum / static_cast<double>(n_pairs);
}

bool is_gate_up(const LogicalTensor& stack) {
  return role_of(stack) == Role::kExpertsGateUp;
}

/// Strengths of the first experts of a stack, as many as suffice.
std::vector<Strengths> first_strengths(const formats::Checkpoint& source,
                                       const LogicalTensor& stack) {
  const std::uint64_t n_elements = stack.shape[1] * stack.shape[2];
  const std::uint64_t n_experts =
      std::min({stack.shape[0], kMostExperts, std::max(kMostElements / n_elements, kLeastExperts)});
  std::vector<Strengths> experts;
  for (std::uint64_t expert = 0; expert < n_experts; ++expert)
    experts.push_back(strengths_of(source, stack, expert));
  return experts;
}

/// How far the means of two groups of channels are apart, in standard deviations. `is_first` says
/// of a channel which group it is in.
template <typename IsFirst>
double apart(const std::vector<double>& channels, const IsFirst& is_first) {
  std::array<double, 2> sums{}, squares{};
  const double n = static_cast<double>(channels.size()) / 2;
  for (std::size_t i = 0; i < channels.size(); ++i) {
    const std::size_t group = is_first(i) ? 0 : 1;
    sums.at(group) += channels[i];
    squares.at(group) += channels[i] * channels[i];
  }
  double variance = 0;
  for (const std::size_t group : {0U, 1U})
    variance += (squares.at(group) - sums.at(group) * sums.at(group) / n) / n;
  return std::abs(sums[0] - sums[1]) / n / std::sqrt(variance / n + 1e-300);
}

StackSides measure(const formats::Checkpoint& source, const LogicalTensor& stack) {
  std::vector<Strengths> experts = first_strengths(source, stack);
  const std::uint64_t n_experts = experts.size();
  for (Strengths& expert : experts) {
    const std::size_t n_parts = is_gate_up(stack) ? 2 : 1;
    normalize(expert.rows, n_parts);
    normalize(expert.cols, n_parts);
  }
  std::vector<const std::vector<double>*> rows, cols;
  for (const Strengths& expert : experts) {
    rows.push_back(&expert.rows);
    cols.push_back(&expert.cols);
  }
  const double of_rows = agreement(rows), of_cols = agreement(cols);
  // Outputs of down are the hidden state, as are inputs of gate and up.
  const bool writes = role_of(stack) == Role::kExpertsDown;
  const bool hidden_is_rows = (stack.stack == StackOrder::kInputMajor) != writes;
  const auto n_pairs = static_cast<double>(n_experts * (n_experts - 1) / 2);
  const double deviation = std::sqrt(
      (1.0 / static_cast<double>(stack.shape[1]) + 1.0 / static_cast<double>(stack.shape[2])) /
      n_pairs);
  StackSides sides{.tensor = stack.name,
                   .hidden = hidden_is_rows ? of_rows : of_cols,
                   .inner = hidden_is_rows ? of_cols : of_rows};
  const double difference = (sides.hidden - sides.inner) / deviation;
  sides.is_told = std::abs(difference) >= kDeviations;
  sides.is_as_row_says = difference >= 0;
  sides.sure = std::min(0.5 * std::erfc(-std::abs(difference) / std::numbers::sqrt2), kSurest);
  return sides;
}

}  // namespace

namespace {

/// The first stack of each row, where it has several matrices.
std::vector<const LogicalTensor*> first_stacks(const formats::Checkpoint& checkpoint) {
  std::vector<const LogicalTensor*> found;
  std::set<const formats::TensorRule*> rows;
  for (const LogicalTensor& tensor : checkpoint.tensors()) {
    const bool is_matrices = tensor.stack != StackOrder::kNone && tensor.shape.size() == 3 &&
                             tensor.encoding.scheme != formats::SchemeId::kRaw &&
                             tensor.shape[0] >= 2 && tensor.shape[1] > 1 && tensor.shape[2] > 1;
    if (is_matrices && rows.insert(tensor.rule).second) found.push_back(&tensor);
  }
  return found;
}

}  // namespace

std::vector<StackSides> measure_stacks(const formats::Checkpoint& checkpoint) {
  std::vector<StackSides> found;
  for (const LogicalTensor* stack : first_stacks(checkpoint))
    found.push_back(measure(checkpoint, *stack));
  return found;
}

std::optional<formats::GateUpOrder> measure_gate_up(const formats::Checkpoint& checkpoint) {
  using formats::GateUpOrder;
  std::optional<GateUpOrder> found;
  for (const LogicalTensor* stack : first_stacks(checkpoint)) {
    if (!is_gate_up(*stack)) continue;
    const bool is_rows = stack->stack == StackOrder::kOutputMajor;
    std::vector<double> channels(stack->shape[is_rows ? 1 : 2]);
    for (const Strengths& expert : first_strengths(checkpoint, *stack)) {
      const std::vector<double>& side = is_rows ? expert.rows : expert.cols;
      for (std::size_t i = 0; i < side.size(); ++i) channels[i] += side[i];
    }
    const double halves = apart(channels, [&](std::size_t i) { return i < channels.size() / 2; });
    const double in_turn = apart(channels, [](std::size_t i) { return i % 2 == 0; });
    const bool is_told =
        std::max(halves, in_turn) >= kSureDeviations && std::min(halves, in_turn) < kDeviations;
    if (!is_told) continue;
    const GateUpOrder order = halves > in_turn ? GateUpOrder::kHalves : GateUpOrder::kInterleaved;
    if (found && *found != order) return std::nullopt;
    found = order;
  }
  return found;
}

std::string stack_text(const StackSides& sides) {
  const std::string measured = fmt::format(
      "the strengths of channels agree between experts by {:.3f} on the side of the "
      "hidden state, {:.3f} on the other",
      sides.hidden, sides.inner);
  if (!sides.is_told) return fmt::format("its values do not tell its orientation ({})", measured);
  return fmt::format("{} ({:.2f}% sure: {})",
                     sides.is_as_row_says ? "its values agree with the orientation that its row has"
                                          : "its values say that it is transposed",
                     100 * sides.sure, measured);
}

}  // namespace ingot::verify
