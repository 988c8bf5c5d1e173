#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "inference/base/matrix.h"

namespace ingot::testing {

/// Recorded activations: a safetensors file with F32 and I64 tensors.
class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : file_(Fd::open_for_reading(path)) {
    for (auto& tensor : formats::read_safetensors_header(file_).tensors) {
      tensors_.emplace(tensor.name, tensor);
    }
  }

  [[nodiscard]] bool has(const std::string& name) const { return tensors_.contains(name); }
  [[nodiscard]] formats::Shape shape(const std::string& name) const {
    return tensors_.at(name).shape;
  }
  [[nodiscard]] std::vector<float> floats(const std::string& name) const {
    return read<float>(name, formats::DType::kF32);
  }
  /// The tensor is I64 or I32.
  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name) const {
    if (tensors_.at(name).dtype == formats::DType::kI64) {
      return read<std::int64_t>(name, formats::DType::kI64);
    }
    const auto narrow = read<std::int32_t>(name, formats::DType::kI32);
    return {narrow.begin(), narrow.end()};
  }
  [[nodiscard]] inference::Matrix matrix(const std::string& name) const {
    const formats::Shape& shape = tensors_.at(name).shape;
    inference::Matrix matrix(shape.at(0), shape.at(1));
    const std::vector<float> values = floats(name);
    std::copy(values.begin(), values.end(), matrix.values().begin());
    return matrix;
  }

  /// The states before layer `l`, of which `all` has every position, and the recorded ones; of the
  /// longest prompt both at its `positions`.
  [[nodiscard]] std::pair<std::vector<float>, std::vector<float>> states_and_recorded(
      const std::vector<float>& all, const std::string& prompt, std::size_t l) const {
    const std::string layer = std::to_string(l);
    if (!has(prompt + "positions")) return {all, floats(prompt + "hidden." + layer)};
    std::vector<float> states, recorded = floats(prompt + "states." + layer);
    const std::vector<std::int64_t> positions = integers(prompt + "positions");
    const std::size_t width = recorded.size() / positions.size();
    for (const std::int64_t position : positions) {
      const auto row = std::span(all).subspan(static_cast<std::size_t>(position) * width, width);
      states.insert(states.end(), row.begin(), row.end());
    }
    return {std::move(states), std::move(recorded)};
  }

 private:
  template <typename T>
  std::vector<T> read(const std::string& name, formats::DType dtype) const {
    const formats::StoredTensor& tensor = tensors_.at(name);
    if (tensor.dtype != dtype) throw std::runtime_error(name + " has another dtype");
    std::vector<T> values(tensor.n_bytes / sizeof(T));
    file_.read_exact(std::as_writable_bytes(std::span(values)), tensor.offset);
    return values;
  }

  Fd file_;
  std::map<std::string, formats::StoredTensor> tensors_;
};

}  // namespace ingot::testing
