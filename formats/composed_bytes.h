#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// Bytes of the stored tensors of several checkpoints: each call goes to the one that has them.
/// Files of all but the first are named `GIVER/FILE`.
class ComposedBytes final : public StoredBytes {
 public:
  explicit ComposedBytes(std::vector<Giver> givers) : givers_(std::move(givers)) {
    for (std::uint32_t giver = 0; giver < givers_.size(); ++giver) {
      first_file_.push_back(static_cast<std::uint32_t>(files_.size()));
      const auto files = givers_[giver].model->files();
      for (std::uint32_t file = 0; file < files.size(); ++file) {
        SourceFile& own = files_.emplace_back(files[file]);
        if (giver > 0) own.name = fmt::format("{}/{}", givers_[giver].name, own.name);
        places_.push_back({.giver = giver, .index = file});
      }
    }
  }

  /// Adds a stored tensor of a giver, whose home is `home`. Returns its index.
  std::uint32_t add(std::uint32_t giver, std::uint32_t stored, const std::string& home) {
    tensors_.push_back({.giver = giver, .index = stored});
    homes_.push_back(home);
    return static_cast<std::uint32_t>(tensors_.size() - 1);
  }
  [[nodiscard]] std::uint32_t first_file(std::uint32_t giver) const { return first_file_[giver]; }

  [[nodiscard]] std::span<const SourceFile> files() const override { return files_; }
  void read(std::uint32_t index, const StoredTensor& /*tensor*/, std::uint64_t offset,
            std::span<std::byte> out) const override {
    const Place& at = tensors_.at(index);
    model(at).read(at.index, offset, out);
  }
  [[nodiscard]] std::vector<std::byte> header_bytes(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    return model(at).header_bytes(at.index);
  }
  [[nodiscard]] bool has_data(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    return model(at).has_data(at.index);
  }
  void read_file(std::uint32_t file, std::uint64_t offset,
                 std::span<std::byte> out) const override {
    const Place& at = places_.at(file);
    model(at).read_file(at.index, offset, out);
  }
  void close_file(std::uint32_t file) const override {
    const Place& at = places_.at(file);
    model(at).close_file(at.index);
  }
  // No file of the base holds what was taken.
  [[nodiscard]] bool is_whole() const override { return false; }
  [[nodiscard]] std::string home_file(std::uint32_t index) const override {
    return homes_.at(index);
  }

 private:
  /// A file, or a stored tensor, of a giver.
  struct Place {
    std::uint32_t giver = 0, index = 0;
  };
  [[nodiscard]] const Checkpoint& model(const Place& at) const { return *givers_[at.giver].model; }

  std::vector<Giver> givers_;
  std::vector<std::uint32_t> first_file_;  // by giver
  std::vector<SourceFile> files_;
  std::vector<Place> places_;   // by file
  std::vector<Place> tensors_;  // by stored tensor
  std::vector<std::string> homes_;
};

/// The weights file that has a stored tensor in an unsliced checkpoint; empty where it is unknown.
inline std::string home_in(const Checkpoint& model, std::uint32_t stored) {
  return model.is_whole() ? model.files()[model.stored()[stored].file].name
                          : model.home_file(stored);
}

}  // namespace ingot::formats
