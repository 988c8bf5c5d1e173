#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "formats/base/fd.h"
#include "formats/container/safetensors.h"
#include "formats/json/json.h"
#include "tests/support/tiny_tokenizer.h"

namespace ingot::testing {

/// A small checkpoint in memory, to be damaged and written back. Files are written by hand, not
/// through our writer, so that anything can be wrong with them.
struct EditableCheckpoint {
  struct Tensor {
    formats::DType dtype{};
    formats::Shape shape;
    std::vector<std::byte> bytes;
  };

  formats::Json config;
  std::map<std::string, formats::Json> descriptions = {  ///< other JSON files, by name
      {"tokenizer.json", formats::Json::parse(kTinyTokenizer)}};
  std::map<std::string, Tensor> tensors;
  std::string file_name = "model.safetensors";
  bool with_metadata = true;

  static EditableCheckpoint load(const std::filesystem::path& directory) {
    EditableCheckpoint loaded;
    loaded.config = formats::read_json_file(directory / "config.json", 1 << 20);
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() != ".safetensors") continue;
      const Fd file = Fd::open_for_reading(entry.path());
      for (const formats::StoredTensor& stored : formats::read_safetensors_header(file).tensors) {
        Tensor tensor{stored.dtype, stored.shape, std::vector<std::byte>(stored.n_bytes)};
        file.read_exact(tensor.bytes, stored.offset);
        loaded.tensors.emplace(stored.name, std::move(tensor));
      }
    }
    return loaded;
  }

  /// Without values the file has its size, and a hole in place of them.
  void write(const std::filesystem::path& directory, bool with_values = true) const {
    formats::Json header = formats::Json::object();
    if (with_metadata) header["__metadata__"] = {{"format", "pt"}};
    std::uint64_t offset = 0;
    for (const auto& [name, tensor] : tensors) {
      header[name] = {{"dtype", formats::dtype_name(tensor.dtype)},
                      {"shape", tensor.shape},
                      {"data_offsets", {offset, offset + tensor.bytes.size()}}};
      offset += tensor.bytes.size();
    }
    const std::string text = header.dump();
    const std::uint64_t n = text.size();
    std::ofstream file(directory / file_name, std::ios::binary);
    file.write(reinterpret_cast<const char*>(&n), sizeof n);
    file.write(text.data(), static_cast<std::streamsize>(text.size()));
    for (const auto& [name, tensor] : tensors) {
      if (!with_values) break;
      file.write(reinterpret_cast<const char*>(tensor.bytes.data()),
                 static_cast<std::streamsize>(tensor.bytes.size()));
    }
    file.close();
    if (!with_values)
      std::filesystem::resize_file(directory / file_name, sizeof n + text.size() + offset);
    std::ofstream(directory / "config.json") << config.dump();
    for (const auto& [name, content] : descriptions)
      std::ofstream(directory / name) << content.dump();
  }

  Tensor& at(const std::string& name) { return tensors.at(name); }

  /// Replaces a tensor by one of another dtype and shape, every byte zero.
  void put_zeros(const std::string& name, formats::DType dtype, const formats::Shape& shape) {
    tensors[name] = {dtype, shape,
                     std::vector<std::byte>(formats::byte_count(dtype, shape).value())};
  }

  /// Replaces a tensor by one whose every element is `value`; F32 and I64 (the float's bits) only.
  void put_floats(const std::string& name, const formats::Shape& shape, float value,
                  formats::DType dtype = formats::DType::kF32) {
    put_zeros(name, dtype, shape);
    std::vector<std::byte>& bytes = at(name).bytes;
    const std::size_t width = formats::dtype_bits(dtype) / 8;
    for (std::size_t i = 0; i < bytes.size(); i += width)
      std::memcpy(&bytes[i], &value, sizeof value);
  }

  /// The same for elements of one byte.
  void put_bytes(const std::string& name, formats::DType dtype, const formats::Shape& shape,
                 unsigned value) {
    put_zeros(name, dtype, shape);
    std::fill(at(name).bytes.begin(), at(name).bytes.end(), static_cast<std::byte>(value));
  }

  /// Puts a list of integers, I32.
  void put_integers(const std::string& name, const std::vector<std::int32_t>& values) {
    put_zeros(name, formats::DType::kI32, {values.size()});
    std::memcpy(at(name).bytes.data(), values.data(), values.size() * sizeof values[0]);
  }

  /// Removes every tensor whose name begins with `prefix`; returns how many.
  std::size_t erase_prefix(const std::string& prefix) {
    return std::erase_if(tensors,
                         [&](const auto& entry) { return entry.first.starts_with(prefix); });
  }
};

}  // namespace ingot::testing
