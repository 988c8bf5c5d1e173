#include <algorithm>

#include "convert/plan/band.h"
#include "convert/plan/passes.h"
#include "formats/base/error.h"

namespace ingot::convert {

using formats::StoredMatrix;
using formats::ValueChange;

namespace {

// Bytes that are held while rows of a matrix are read.
std::uint64_t bytes_of_whole(const StoredMatrix& matrix) {
  return matrix.has_whole_rows() ? 0 : matrix.of->tensor(matrix.stored).n_bytes;
}

bool meet(const formats::Window& a, const formats::Window& b) {
  const auto last = [](const formats::Window& of) { return of.first + (of.n - 1) * of.step; };
  if (a.n == 0 || b.n == 0) return false;
  if (a.step == b.step && a.first % a.step != b.first % a.step) return false;
  return a.first <= last(b) && b.first <= last(a);
}

// True if both scale a row, or a column, or one rows that the other's columns cross.
bool meet(const ValueChange& a, const ValueChange& b) {
  if (a.matrix != b.matrix) return false;
  const bool are_crossed = a.lengths_are_of_cols != b.lengths_are_of_cols;
  return are_crossed || (a.lengths_are_of_cols ? meet(a.cols, b.cols) : meet(a.rows, b.rows));
}

}  // namespace

void find_changes(Plan& plan, ErrorList& refusals) {
  for (const auto& editor : plan.recipe.choices.editors)
    editor->add_changes(plan.source, plan.changes, refusals, plan.warnings);
  for (auto& [index, changes] : plan.changes) {
    std::ranges::stable_sort(changes, {}, &ValueChange::matrix);
    std::vector<const ValueChange*> scaled;
    for (const ValueChange& change : changes) {
      if (!change.lengths) continue;
      if (std::ranges::any_of(scaled, [&](const auto* one) { return meet(*one, change); })) {
        refusals.add(ErrorCode::kUnsupported, plan.source.tensors()[index].name,
                     "would be scaled to the lengths of two adapters with DoRA (fold one, and the "
                     "other into its output)");
      }
      scaled.push_back(&change);
    }
  }
}

std::uint64_t change_bytes(std::span<const ValueChange> changes, const BandPlan& bands) {
  if (changes.empty()) return 0;
  std::uint64_t most = 0, whole = 0;
  for (std::size_t i = 0; i < changes.size();) {
    std::uint64_t n = 0;
    const std::uint64_t matrix = changes[i].matrix;
    for (; i < changes.size() && changes[i].matrix == matrix; ++i) {
      const ValueChange& change = changes[i];
      if (const auto& pair = change.low_rank) {
        n += pair->rank * ((pair->left ? change.rows.n : 0) + change.cols.n) * sizeof(float);
        whole = std::max(
            {whole, bytes_of_whole(pair->right), pair->left ? bytes_of_whole(*pair->left) : 0});
      }
      if (change.values) {
        n += std::min(change.rows.n, bands.band_rows) * change.cols.n * sizeof(float);
        whole = std::max(whole, bytes_of_whole(*change.values));
      }
      if (change.lengths) {
        // The rows of the matrix are read band by band for the lengths of columns.
        const bool is_of_cols = change.lengths_are_of_cols;
        const std::uint64_t n_lengths = is_of_cols ? change.cols.n : change.rows.n;
        n += n_lengths * (sizeof(float) + 2 * sizeof(double)) +
             (is_of_cols ? bands.band_rows * bands.row_bytes_in() : 0);
      }
    }
    most = std::max(most, n);
  }
  // PlainNumbers keeps two, and this thread reads a third. A tile as it was, and as FP64.
  return most + 3 * whole + bands.tile_rows * bands.tile_cols * (sizeof(float) + sizeof(double));
}

}  // namespace ingot::convert
