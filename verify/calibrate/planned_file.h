#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/container/safetensors.h"
#include "formats/files/folder.h"

namespace ingot::verify {

/// A safetensors file that is laid out beforehand and filled in any order.
class PlannedFile {
 public:
  /// Lays out tensors in the order of files. `metadata` as safetensors_header_text() has it.
  PlannedFile(std::vector<formats::TensorSpec> tensors,
              std::span<const std::pair<std::string, std::string>> metadata);

  [[nodiscard]] std::uint64_t n_bytes() const { return n_bytes_; }
  /// Makes the file in place of any of this name, with room for all of it (kNoSpace).
  void create(const Folder& folder, const std::string& name);
  /// Opens a file that create() made, with what was written to it. Throws kCorrupt for another
  /// layout.
  void open(const Folder& folder, const std::string& name);

  /// Writes bytes of a tensor, from `offset` within it on.
  void put(const std::string& tensor, std::span<const std::byte> bytes, std::uint64_t offset = 0);
  /// Reads a whole tensor that was put.
  [[nodiscard]] std::vector<std::byte> read(const std::string& tensor) const;
  /// True if put() has reached the end of every tensor.
  [[nodiscard]] bool is_full() const { return open_.empty(); }
  void sync() const { file_.sync(); }
  /// Tensor hash of the bytes.
  [[nodiscard]] Hash128 hash() const;

 private:
  struct Place {
    std::uint64_t offset = 0, n_bytes = 0;
  };

  std::string header_;
  std::uint64_t n_bytes_ = 0;
  std::map<std::string, Place, std::less<>> places_;
  std::map<std::string, std::uint64_t, std::less<>> open_;  // bytes of tensors that lack some
  Fd file_;
};

}  // namespace ingot::verify
