#pragma once

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "tests/support/test.h"

namespace ingot::testing {

/// A stored tensor with its bytes.
struct OutputTensor {
  formats::DType dtype{};
  formats::Shape shape;
  std::string file, bytes;

  /// The bytes as numbers of this machine.
  template <typename T>
  [[nodiscard]] std::vector<T> as() const {
    std::vector<T> values(bytes.size() / sizeof(T));
    std::memcpy(values.data(), bytes.data(), values.size() * sizeof(T));
    return values;
  }
  friend bool operator==(const OutputTensor& a, const OutputTensor& b) {
    return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
  }
};

using OutputTensors = std::map<std::string, OutputTensor>;

/// Adds every tensor of a weights file.
inline void add_file(const std::filesystem::path& path, OutputTensors& tensors) {
  const Fd file = Fd::open_for_reading(path);
  for (const formats::StoredTensor& stored : formats::read_safetensors_header(file).tensors) {
    OutputTensor tensor{.dtype = stored.dtype,
                        .shape = stored.shape,
                        .file = path.filename().string(),
                        .bytes = std::string(stored.n_bytes, '\0')};
    file.read_exact(std::as_writable_bytes(std::span(tensor.bytes)), stored.offset);
    tensors.emplace(stored.name, std::move(tensor));
  }
}

/// Every tensor of every weights file at the top of a directory.
inline OutputTensors read_output(const std::filesystem::path& directory) {
  OutputTensors tensors;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") add_file(entry.path(), tensors);
  }
  return tensors;
}

/// `X` of `X.weight`.
inline std::string module_of(std::string_view weight) {
  constexpr std::string_view kSuffix = ".weight";
  if (weight.ends_with(kSuffix)) weight.remove_suffix(kSuffix.size());
  return std::string(weight);
}

}  // namespace ingot::testing
