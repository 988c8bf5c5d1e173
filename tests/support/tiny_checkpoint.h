#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ingot::testing {

/// A tensor as a test wants it. Data are zeros unless given.
struct TinyTensor {
  std::string name;
  std::string dtype;
  std::vector<std::uint64_t> shape;
  std::string data = {};
};

/// Tensors of zeros, as a text tells them: "a.weight U8 8,4; a.weight_scale_2 F32".
std::vector<TinyTensor> tensors_of(const std::string& text);

/// The bytes of a safetensors file, put together here and not by the product: tensors in the order
/// given, no padding.
std::string safetensors_bytes(const std::vector<TinyTensor>& tensors);

/// Writes `bytes` as they are; creates the folders above.
void write_bytes(const std::filesystem::path& path, std::string_view bytes);

/// A checkpoint directory whose every part a test may bend.
struct TinyCheckpoint {
  std::string config;                                    ///< config.json; not written when empty
  std::map<std::string, std::vector<TinyTensor>> files;  ///< by file name
  std::map<std::string, std::string> weight_map;         ///< the index; not written when empty

  /// weight_map := the tensors of the files.
  void index_files();
  void write(const std::filesystem::path& directory) const;
};

/// A decoder of family deepseek_v3 with two layers (the second with two experts and one shared
/// one), 8 wide, every weight BF16, in one file model.safetensors.
TinyCheckpoint tiny_deepseek_v3();

/// A weight of its dense layer.
inline constexpr const char* kUpWeight = "model.layers.0.mlp.up_proj.weight";

/// The tensor of this name in any file; fails hard when there is none.
TinyTensor& tensor_of(TinyCheckpoint& checkpoint, const std::string& name);

/// Turns a BF16 weight into F8_E4M3 with an F32 scale `scale_name` (one 128x128 block).
void make_fp8(TinyCheckpoint& checkpoint, const std::string& name, const std::string& scale_name);

}  // namespace ingot::testing
