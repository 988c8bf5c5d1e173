#include "verify/weights/changed_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>

#include "formats/base/error.h"
#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/modules/joined_module.h"
#include "formats/storage/block_scales.h"
#include "quantize/scheme.h"
#include "verify/weights/weight_bands.h"

// Written apart from the conversion's own way: plainly, element by element.

namespace ingot::verify {
namespace {

using formats::Checkpoint;
using formats::DType;
using formats::LogicalTensor;
using formats::SchemeId;
using formats::ValueChange;

/// The place of `at` in a window, or nullopt.
std::optional<std::uint64_t> place_in(const formats::Window& window, std::uint64_t at) {
  if (at < window.first || (at - window.first) % window.step != 0) return std::nullopt;
  const std::uint64_t place = (at - window.first) / window.step;
  return place < window.n ? std::optional(place) : std::nullopt;
}

/// A change, with the numbers that all of its rows share.
struct HeldChange {
  const ValueChange* change;
  std::vector<float> right;
  std::vector<double> col_factors;  // where columns are scaled

  explicit HeldChange(const ValueChange& of) : change(&of) {
    if (of.low_rank) right = of.low_rank->right.read(0, of.low_rank->rank, of.cols.n);
  }

  /// Changes one row of its matrix.
  void apply(std::uint64_t row, std::vector<double>& values) const {
    add(row, values);
    scale(row, values);
  }
  void add(std::uint64_t row, std::vector<double>& values) const {
    const auto own = place_in(change->rows, row);
    if (!own) return;
    const auto& [first, n, step] = change->cols;
    if (change->values) {
      const std::vector<float> given = change->values->read(*own, 1, n);
      for (std::uint64_t c = 0; c < n; ++c) values[first + c * step] = given[c];
    }
    if (const auto& pair = change->low_rank) {
      std::vector<float> left(pair->rank, 1.0F);
      if (pair->left) left = pair->left->read(*own, 1, pair->rank);
      std::vector<double> sums(n);
      for (std::uint64_t k = 0; k < pair->rank; ++k) {
        for (std::uint64_t c = 0; c < n; ++c) sums[c] += double{left[k]} * double{right[k * n + c]};
      }
      for (std::uint64_t c = 0; c < n; ++c) values[first + c * step] += pair->factor * sums[c];
    }
  }
  void scale(std::uint64_t row, std::vector<double>& values) const {
    const auto own = place_in(change->rows, row);
    if (!own) return;
    const auto& [first, n, step] = change->cols;
    for (std::uint64_t c = 0; c < col_factors.size(); ++c)
      values[first + c * step] *= col_factors[c];
    if (change->lengths && !change->lengths_are_of_cols) {
      double square = 0;
      for (const double value : values) square += value * value;
      if (square == 0) return;
      const double factor = change->lengths->read(*own, 1, 1).front() / std::sqrt(square);
      for (double& value : values) value *= factor;
    }
  }
};

/// Bytes of a source of which some tensors change.
class ChangedBytes final : public formats::ForwardedBytes {
 public:
  struct Changed {
    std::uint32_t tensor;  // of the source
    DType dtype;
    std::vector<ValueChange> changes;
  };

  ChangedBytes(std::shared_ptr<const Checkpoint> source,
               std::unordered_map<std::uint32_t, Changed> changed)
      : ForwardedBytes(source->bytes()), source_(std::move(source)), changed_(std::move(changed)) {}

  void read(std::uint32_t index, const formats::StoredTensor& tensor, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const auto found = changed_.find(index);
    if (found == changed_.end()) return bytes_->read(index, tensor, offset, out);
    if (out.empty()) return;
    const Changed& changed = found->second;
    const Rows rows(*source_, source_->tensors()[changed.tensor], changed.dtype);
    const std::uint64_t row_bytes = rows.cols * formats::dtype_bits(tensor.dtype) / 8;
    const std::uint64_t first = offset / row_bytes, last = (offset + out.size() - 1) / row_bytes;
    std::vector<HeldChange> held;
    for (const ValueChange& change : changed.changes) {
      if (change.matrix >= first / rows.in_matrix && change.matrix <= last / rows.in_matrix)
        held.emplace_back(change);
    }
    for (HeldChange& change : held) {
      if (change.change->lengths_are_of_cols)
        change.col_factors = col_factors(rows, *change.change, held);
    }
    for (std::uint64_t row = first; row <= last; ++row) {
      const std::vector<std::byte> bytes = rows.bytes_of(row, held);
      const std::uint64_t begin = row == first ? offset % row_bytes : 0;
      const std::size_t n = std::min<std::uint64_t>(out.size(), row_bytes - begin);
      std::memcpy(out.data(), bytes.data() + begin, n);
      out = out.subspan(n);
    }
  }

 private:
  /// The rows of a tensor, as they are decoded and changed.
  struct Rows {
    const Checkpoint& source;
    const LogicalTensor& tensor;
    DType dtype;
    std::uint64_t cols = tensor.shape.empty() ? 1 : tensor.shape.back();
    std::uint64_t in_matrix = tensor.shape.size() < 2 ? 1 : tensor.shape[tensor.shape.size() - 2];
    formats::ScaleReader scales{source, tensor};

    Rows(const Checkpoint& of, const LogicalTensor& its, DType wanted)
        : source(of), tensor(its), dtype(wanted) {}

    [[nodiscard]] std::vector<double> decoded(std::uint64_t row) const {
      std::vector<std::byte> codes;
      const EncodedBand band = read_band({.source = source, .tensor = tensor},
                                         {.row = row, .rows = 1, .col = 0, .cols = cols},
                                         scales.has_scales() ? &scales : nullptr, codes);
      std::vector<float> values(cols);
      quantize::decode(band.run, {.data = values.data(), .rows = 1, .cols = cols, .stride = cols});
      return {values.begin(), values.end()};
    }

    [[nodiscard]] std::vector<std::byte> bytes_of(std::uint64_t row,
                                                  const std::vector<HeldChange>& held) const {
      std::vector<double> wide = decoded(row);
      for (const HeldChange& change : held) {
        if (change.change->matrix == row / in_matrix) change.apply(row % in_matrix, wide);
      }
      std::vector<std::byte> bytes(cols * formats::dtype_bits(dtype) / 8);
      for (std::uint64_t c = 0; c < cols; ++c) {
        const auto value = static_cast<float>(wide[c]);
        if (dtype == DType::kF32) {
          std::memcpy(bytes.data() + c * sizeof value, &value, sizeof value);
          continue;
        }
        const std::uint16_t word = dtype == DType::kBf16 ? formats::bf16_from_float(value)
                                                         : formats::f16_from_float(value);
        std::memcpy(bytes.data() + c * sizeof word, &word, sizeof word);
      }
      return bytes;
    }
  };

  // The factors of a change that gives columns their lengths. They are kept, since each look at
  // rows needs those of all rows of the matrix.
  std::vector<double> col_factors(const Rows& rows, const ValueChange& change,
                                  const std::vector<HeldChange>& held) const {
    const std::lock_guard lock(mutex_);
    std::vector<double>& factors = col_factors_[&change];
    if (!factors.empty()) return factors;
    const formats::Window& cols = change.cols;
    std::vector<double> squares(cols.n);
    for (std::uint64_t row = 0; row < rows.in_matrix; ++row) {
      std::vector<double> values = rows.decoded(change.matrix * rows.in_matrix + row);
      for (const HeldChange& other : held) {
        if (other.change->matrix == change.matrix) other.add(row, values);
        if (other.change == &change) break;
      }
      for (std::uint64_t c = 0; c < cols.n; ++c) {
        const double value = values[cols.first + c * cols.step];
        squares[c] += value * value;
      }
    }
    const std::vector<float> lengths = change.lengths->read(0, cols.n, 1);
    for (std::uint64_t c = 0; c < cols.n; ++c)
      factors.push_back(squares[c] > 0 ? lengths[c] / std::sqrt(squares[c]) : 1);
    return factors;
  }

  std::shared_ptr<const Checkpoint> source_;
  std::unordered_map<std::uint32_t, Changed> changed_;
  mutable std::mutex mutex_;  // guards col_factors_
  mutable std::map<const ValueChange*, std::vector<double>> col_factors_;
};

/// The scale over all of a tensor; nullopt where its scheme has none.
std::optional<float> global_of(const Checkpoint& side, const LogicalTensor& tensor) {
  if (!is_quantized(tensor)) return std::nullopt;
  const bool is_whole = formats::scheme_facts(tensor.encoding.scheme).group_rows == 0;
  const formats::ScaleReader scales(side, tensor);
  if (scales.global()) return scales.global()->value;
  if (!is_whole || !scales.has_scales()) return std::nullopt;
  return scales.read({.first = 0, .n = 1}).front();
}

/// Tensors of the source that loaders fuse with changed ones, and that the output has under another
/// global scale: they were encoded again, since changed values did not fit under theirs.
std::vector<std::uint32_t> encoded_again(const Checkpoint& source, const Checkpoint& output,
                                         const formats::ValueChanges& changes) {
  const auto module_of = [](const LogicalTensor& tensor) {
    return formats::joined_module(tensor.name, tensor.rule, formats::ExpertJoin::kExpert);
  };
  std::set<std::string> changed;
  for (const auto& [index, unused] : changes) changed.insert(module_of(source.tensors()[index]));
  changed.erase("");
  std::map<std::string_view, const LogicalTensor*> made;
  for (const LogicalTensor& tensor : output.tensors()) made.emplace(tensor.name, &tensor);
  std::vector<std::uint32_t> again;
  for (std::uint32_t i = 0; i < source.tensors().size(); ++i) {
    const LogicalTensor& tensor = source.tensors()[i];
    const auto found = made.find(tensor.name);
    if (changes.contains(i) || !changed.contains(module_of(tensor)) || found == made.end() ||
        found->second->encoding.scheme != tensor.encoding.scheme)
      continue;
    const auto before = global_of(source, tensor);
    if (before && before != global_of(output, *found->second)) again.push_back(i);
  }
  return again;
}

SchemeId plain_scheme_in(const std::map<std::string_view, SchemeId>& output,
                         const std::string& name) {
  const auto found = output.find(name);
  const bool is_plain = found != output.end() &&
                        (found->second == SchemeId::kBf16 || found->second == SchemeId::kF16);
  return is_plain ? found->second : SchemeId::kF32;
}

}  // namespace

Checkpoint with_changed_values(
    Checkpoint whole, const std::vector<std::shared_ptr<const formats::ValueEditor>>& editors,
    const Checkpoint* output) {
  auto held = std::make_shared<const Checkpoint>(std::move(whole));
  for (const auto& editor : editors) {
    if (auto shaped = editor->reshaped(held))
      held = std::make_shared<const Checkpoint>(*std::move(shaped));
  }
  const Checkpoint& source = *held;
  formats::ValueChanges changes;
  ErrorList faults;
  std::vector<std::string> remarks;
  for (const auto& editor : editors) editor->add_changes(source, changes, faults, remarks);
  faults.throw_if_any();
  std::map<std::string_view, SchemeId> schemes;
  if (output != nullptr) {
    for (const LogicalTensor& tensor : output->tensors())
      schemes.emplace(tensor.name, tensor.encoding.scheme);
    for (const std::uint32_t index : encoded_again(source, *output, changes)) changes[index];
  }
  formats::Draft draft = source.draft_of_view();
  draft.stored.assign(source.stored().begin(), source.stored().end());
  draft.tensors.assign(source.tensors().begin(), source.tensors().end());
  std::unordered_map<std::uint32_t, ChangedBytes::Changed> changed;
  for (auto& [index, of_tensor] : changes) {
    LogicalTensor& tensor = draft.tensors[index];
    const SchemeId scheme = plain_scheme_in(schemes, tensor.name);
    const std::uint32_t weight = tensor.encoding.stored.weight();
    formats::StoredTensor& stored = draft.stored[weight];
    stored.name = tensor.name;
    stored.dtype = formats::plain_dtype(scheme);
    stored.shape = tensor.shape;
    stored.n_bytes = formats::byte_count(stored.dtype, stored.shape).value();
    tensor.encoding = {.scheme = scheme, .stored = formats::StoredParts(weight)};
    changed.emplace(weight,
                    ChangedBytes::Changed{
                        .tensor = index, .dtype = stored.dtype, .changes = std::move(of_tensor)});
  }
  draft.bytes = std::make_unique<ChangedBytes>(std::move(held), std::move(changed));
  return Checkpoint::view(std::move(draft));
}

}  // namespace ingot::verify
