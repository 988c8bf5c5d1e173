#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/checkpoint.h"
#include "formats/json/json_fwd.h"
#include "formats/places/window.h"

// Changes of a model's decoded values: what an adapter adds, or what edits replace. A change is
// data over stored numbers; quantize/changes/changed_rows.h has its arithmetic, and a conversion
// applies it to the decoded rows of a band before they are encoded (convert/run/value_changer.h).

namespace ingot::formats {

/// The plain numbers of a source, as FP32. Safe from many threads. Keeps the bytes of the two
/// tensors that were gathered last, since the matrices of a stack may lie between one another.
class PlainNumbers {
 public:
  explicit PlainNumbers(std::shared_ptr<const TensorSource> source) : source_(std::move(source)) {}
  [[nodiscard]] const TensorSource& source() const { return *source_; }
  [[nodiscard]] const StoredTensor& tensor(std::uint32_t stored) const {
    return source_->stored()[stored];
  }
  /// Bytes of a whole stored tensor.
  [[nodiscard]] std::shared_ptr<const std::vector<std::byte>> whole(std::uint32_t stored) const;

 private:
  struct Kept {
    std::uint32_t stored;
    std::shared_ptr<const std::vector<std::byte>> bytes;
  };
  std::shared_ptr<const TensorSource> source_;
  mutable std::mutex mutex_;  // guards kept_
  mutable std::vector<Kept> kept_;
};

/// True if PlainNumbers has the numbers of this dtype: BF16, F16 and F32, each exactly.
bool is_plain_number(DType dtype);

/// A matrix in a stored tensor of plain numbers: element (i, j) is number `first` + i `row_step` +
/// j `col_step` of it, row-major.
struct StoredMatrix {
  std::shared_ptr<const PlainNumbers> of;
  std::uint32_t stored = 0;
  std::uint64_t first = 0, row_step = 0, col_step = 1;

  /// Reads rows [row, row + n_rows) of `n_cols` numbers, row-major. Throws kNonFinite, naming file
  /// and tensor, for a number that is NaN or infinite.
  [[nodiscard]] std::vector<float> read(std::uint64_t row, std::uint64_t n_rows,
                                        std::uint64_t n_cols) const;
  /// True if its rows are read from the file by themselves; else the whole stored tensor is held
  /// while they are read.
  [[nodiscard]] bool has_whole_rows() const { return col_step == 1; }
  /// This matrix with rows as columns.
  [[nodiscard]] StoredMatrix turned() const;
};

/// A low-rank pair: `factor` x left x right is added.
struct LowRankPair {
  std::optional<StoredMatrix> left;  ///< [rows, rank]; nullopt: all ones
  StoredMatrix right;                ///< [rank, cols]
  std::uint64_t rank = 1;
  double factor = 1;
};

/// A change of some rows and columns of one matrix of a logical tensor, which is a matrix, a stack
/// of them, or a vector: a matrix of one row. Its steps in their order, on FP64 values: numbers
/// take the place of the decoded ones; the low-rank pair is added; each row, or each column, is
/// scaled so that its Euclidean length is the given one (DoRA), and one of zeros stays. Several
/// changes of a tensor are made one after another, and the result is rounded to FP32 once.
struct ValueChange {
  std::uint32_t tensor = 0;                  ///< index into TensorSource::tensors()
  std::uint64_t matrix = 0;                  ///< number in the stack
  Window rows, cols;                         ///< places in the matrix
  std::optional<StoredMatrix> values = {};   ///< [rows.n, cols.n]
  std::optional<LowRankPair> low_rank = {};  ///< [rows.n, cols.n]
  /// [rows.n, 1], and needs all columns of the matrix; of columns [cols.n, 1], and all rows.
  std::optional<StoredMatrix> lengths = {};
  bool lengths_are_of_cols = false;
};

/// The changes that put a stored tensor of the same shape in the place of logical tensor `index`.
std::vector<ValueChange> replacement(const LogicalTensor& tensor, std::uint32_t index,
                                     const StoredMatrix& values);

/// The changes of a model by tensor: indices into TensorSource::tensors(), each list in the order
/// of its matrices.
using ValueChanges = std::map<std::uint32_t, std::vector<ValueChange>>;

/// Something that changes the values of a model: an adapter, or the edits of a recipe. A conversion
/// asks it once per plan, by headers and JSON; its numbers are read while tensors are converted.
class ValueEditor {
 public:
  ValueEditor() = default;
  virtual ~ValueEditor() = default;
  ValueEditor(const ValueEditor&) = delete;
  ValueEditor& operator=(const ValueEditor&) = delete;

  /// The word for such editors in records: `lora`, `edits`.
  [[nodiscard]] virtual std::string_view kind() const = 0;
  /// The model in the shape that its changes need, as with rows for more tokens; nullopt: it has
  /// this shape. Throws, collected, where it cannot be had.
  [[nodiscard]] virtual std::optional<Checkpoint> reshaped(
      const std::shared_ptr<const Checkpoint>& /*model*/) const {
    return std::nullopt;
  }
  /// Adds its changes of this model, which may be a view. Faults are collected, naming tensors that
  /// the model lacks or has in other shapes; `remarks` are for people.
  virtual void add_changes(const Checkpoint& model, ValueChanges& changes, ErrorList& faults,
                           std::vector<std::string>& remarks) const = 0;
  /// The record for the manifest, and for the identity of a job: names and hashes, no paths.
  [[nodiscard]] virtual Json record() const = 0;
  /// The files that are read, with their stamps when they were opened.
  [[nodiscard]] virtual std::vector<std::pair<std::filesystem::path, FileStamp>> files() const = 0;
};

}  // namespace ingot::formats
