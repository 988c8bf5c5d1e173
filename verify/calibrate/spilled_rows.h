#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/tensor.h"
#include "formats/files/folder.h"
#include "inference/base/matrix.h"

// Activations of all tokens, which tell of the text that was read: in files that only their owner
// may read (mode 0600).

namespace ingot::verify {

/// Rows of FP32 in a file. Those of one use of the file have one width.
class SpilledRows {
 public:
  /// Makes the file in place of any of this name.
  static SpilledRows create(const Folder& folder, const std::string& name);
  /// Opens a file that create() made.
  static SpilledRows open(const Folder& folder, const std::string& name);

  /// Writes rows from row `first` on.
  void write(std::uint64_t first, formats::MatrixView<const float> rows) const;
  [[nodiscard]] inference::Matrix read(std::uint64_t first, std::size_t n, std::size_t cols) const;
  void sync() const { file_.sync_data(); }

 private:
  explicit SpilledRows(Fd file) : file_(std::move(file)) {}
  Fd file_;
};

/// Rows that come with keys, in any order, to be read again key by key.
class KeyedRows {
 public:
  KeyedRows(const Folder& folder, const std::string& name)
      : rows_(SpilledRows::create(folder, name)) {}

  /// REQUIRES: all rows have one width.
  void append(std::size_t key, formats::MatrixView<const float> rows);
  /// Calls visit(rows) with the rows of a key in their order, some at a time.
  void read(std::size_t key,
            const std::function<void(formats::MatrixView<const float> rows)>& visit) const;
  /// Forgets all rows; the next ones may have another width.
  void clear();

 private:
  struct Piece {
    std::uint64_t first = 0, n = 0;  // rows of the file
  };
  SpilledRows rows_;
  std::size_t width_ = 0;
  std::uint64_t n_rows_ = 0;
  std::map<std::size_t, std::vector<Piece>> pieces_;
};

/// Rows that KeyedRows reads at a time.
inline constexpr std::size_t kKeyedRowsAtOnce = 4096;

}  // namespace ingot::verify
