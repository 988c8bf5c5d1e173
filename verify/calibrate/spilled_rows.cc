#include "verify/calibrate/spilled_rows.h"

#include <algorithm>

#include <fcntl.h>
#include <sys/stat.h>

#include "formats/base/error.h"

namespace ingot::verify {

using formats::MatrixView;

SpilledRows SpilledRows::create(const Folder& folder, const std::string& name) {
  Fd file = folder.replace(name, O_RDWR);
  if (::fchmod(file.get(), S_IRUSR | S_IWUSR) != 0)
    throw Error(ErrorCode::kIo, "its mode cannot be made 0600").in_file(file.path());
  return SpilledRows(std::move(file));
}

SpilledRows SpilledRows::open(const Folder& folder, const std::string& name) {
  return SpilledRows(folder.open(name, O_RDWR));
}

void SpilledRows::write(std::uint64_t first, MatrixView<const float> rows) const {
  const std::uint64_t row_bytes = rows.cols * sizeof(float);
  if (rows.stride == rows.cols) {
    file_.write_exact(std::as_bytes(std::span(rows.data, rows.rows * rows.cols)),
                      first * row_bytes);
    return;
  }
  for (std::size_t r = 0; r < rows.rows; ++r)
    file_.write_exact(std::as_bytes(std::span(rows.row(r), rows.cols)), (first + r) * row_bytes);
}

inference::Matrix SpilledRows::read(std::uint64_t first, std::size_t n, std::size_t cols) const {
  inference::Matrix rows(n, cols);
  file_.read_exact(std::as_writable_bytes(rows.values()), first * cols * sizeof(float));
  return rows;
}

void KeyedRows::append(std::size_t key, MatrixView<const float> rows) {
  if (n_rows_ == 0) width_ = rows.cols;
  INGOT_CHECK(rows.cols == width_);
  rows_.write(n_rows_, rows);
  pieces_[key].push_back({.first = n_rows_, .n = rows.rows});
  n_rows_ += rows.rows;
}

void KeyedRows::read(std::size_t key,
                     const std::function<void(MatrixView<const float> rows)>& visit) const {
  const auto found = pieces_.find(key);
  if (found == pieces_.end()) return;
  for (const Piece& piece : found->second) {
    for (std::uint64_t at = 0; at < piece.n; at += kKeyedRowsAtOnce) {
      const std::uint64_t n = std::min<std::uint64_t>(kKeyedRowsAtOnce, piece.n - at);
      visit(rows_.read(piece.first + at, static_cast<std::size_t>(n), width_).view());
    }
  }
}

void KeyedRows::clear() {
  n_rows_ = 0;
  pieces_.clear();
}

}  // namespace ingot::verify
