#pragma once

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include <fnmatch.h>

#include "formats/json/json.h"
#include "tests/convert/plain_decode.h"

// A directory's tensors as numbers, only from its stored bytes and its config.json, which is read
// as loaders read it and apart from the code that writes it.

namespace ingot::testing {

/// Whether an entry of a compressed-tensors list names a module: exactly, as a class of modules, or
/// by an expression matched from its start.
inline bool ct_names(const std::string& entry, const std::string& module) {
  if (!entry.starts_with("re:")) return entry == module || entry == "Linear";
  static std::map<std::string, std::regex> compiled;
  const auto pattern = compiled.try_emplace(entry, entry.substr(3)).first;
  return std::regex_search(module, pattern->second, std::regex_constants::match_continuous);
}

/// The group of compressed-tensors that a linear layer falls into; nullopt for ignored ones.
inline std::optional<formats::Json> ct_group(const formats::Json& block,
                                             const std::string& module) {
  for (const formats::Json& entry : block.at("ignore")) {
    const auto text = entry.get<std::string>();
    if (text != "Linear" && ct_names(text, module)) return std::nullopt;
  }
  for (const auto& [name, group] : block.at("config_groups").items()) {
    for (const formats::Json& target : group.at("targets")) {
      if (ct_names(target.get<std::string>(), module)) return group;
    }
  }
  return std::nullopt;
}

/// True if a list of names of modules, or of their parents, holds a module.
inline bool lists(const formats::Json& block, const char* key, const std::string& module) {
  if (!block.contains(key)) return false;
  for (const formats::Json& entry : block.at(key)) {
    const auto text = entry.get<std::string>();
    if (module == text || module.starts_with(text + ".")) return true;
  }
  return false;
}

/// Whether a glob of ModelOpt's list fits a module.
inline bool modelopt_excludes(const formats::Json& list, const std::string& module) {
  for (const formats::Json& entry : list) {
    if (::fnmatch(entry.get<std::string>().c_str(), module.c_str(), 0) == 0) return true;
  }
  return false;
}

/// A tensor as numbers.
struct Values {
  formats::Shape shape;
  std::vector<float> numbers;

  [[nodiscard]] std::size_t cols() const { return shape.empty() ? 1 : shape.back(); }
  /// The rows of one matrix of a stack.
  [[nodiscard]] std::size_t rows() const { return shape.size() < 2 ? 1 : shape[shape.size() - 2]; }
};

/// By the name of the weight, whatever its dialect calls the codes.
using ValuesByName = std::map<std::string, Values>;

/// Whether a stored tensor says something of another: a scale, an offset, a correction.
inline bool is_beside_a_weight(std::string_view name) {
  constexpr std::array<std::string_view, 7> kSuffixes = {
      "_scale",      "_scale_inv",    "_scale_2",     "_offset",
      ".quant_bias", "_global_scale", ".weight_shape"};
  return std::any_of(kSuffixes.begin(), kSuffixes.end(),
                     [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// Rows and columns that share a scale, as config.json says it of a module in FP8 or INT8 blocks.
inline std::array<std::size_t, 2> stated_block(const formats::Json& config,
                                               const std::string& module) {
  const formats::Json& block = config.at("quantization_config");
  if (block.contains("weight_block_size"))
    return block.at("weight_block_size").get<std::array<std::size_t, 2>>();
  const auto group = ct_group(block, module);
  if (!group) {
    ADD_FAILURE() << module << " has blocks, but is in no group";
    return {1, 1};
  }
  return group->at("weights").at("block_structure").get<std::array<std::size_t, 2>>();
}

/// Which scale belongs to which code. Its loops are plain: tests are compiled without inlining.
class ScaleGrid {
 public:
  ScaleGrid(const OutputTensor& scale, const Values& codes, const formats::Json& config,
            const std::string& module)
      : rows_(codes.rows()), cols_(codes.cols()) {
    const formats::Shape& shape = scale.shape;
    if (shape.size() == 4 && codes.shape.size() == 2) {  // ModelOpt's FP8_PB_WO
      EXPECT_EQ(shape[1] * shape[3], 1U) << module;
      grid_rows_ = shape[0];
      grid_cols_ = shape[2];
      block_ = {128, 128};
    } else if (shape.size() < 2) {
      grid_rows_ = shape.empty() ? 1 : shape[0];
      block_ = {grid_rows_ == 1 ? rows_ : 1, cols_};
    } else {
      grid_rows_ = shape[shape.size() - 2];
      grid_cols_ = shape.back();
      block_ = grid_rows_ == rows_ ? std::array<std::size_t, 2>{1, cols_ / grid_cols_}
                                   : stated_block(config, module);
    }
    EXPECT_EQ(grid_rows_, (rows_ + block_[0] - 1) / block_[0]) << module;
    EXPECT_EQ(grid_cols_, (cols_ + block_[1] - 1) / block_[1]) << module;
  }

  /// Multiplies the numbers of all matrices by the scales of their places.
  void scale(std::vector<float>& numbers, const std::vector<float>& scales) const {
    const std::size_t n_rows = numbers.size() / cols_;
    ASSERT_EQ(scales.size(), n_rows / rows_ * grid_rows_ * grid_cols_);
    float* number = numbers.data();
    for (std::size_t row = 0; row < n_rows; ++row) {
      const std::size_t in_grid = row / rows_ * grid_rows_ + row % rows_ / block_[0];
      const float* of_row = scales.data() + in_grid * grid_cols_;
      for (std::size_t col = 0; col < cols_; ++col) *number++ *= of_row[col / block_[1]];
    }
  }

 private:
  std::size_t rows_, cols_, grid_rows_ = 1, grid_cols_ = 1;
  std::array<std::size_t, 2> block_ = {1, 1};
};

/// A loader's values of the codes `name` (docs/formats.md, "Decoding").
inline Values decoded_by_hand(const OutputTensors& tensors, const std::string& name,
                              const formats::Json& config) {
  const OutputTensor& codes = tensors.at(name);
  Values values{.shape = codes.shape, .numbers = code_values(codes)};
  if (codes.dtype == formats::DType::kU8) values.shape.back() *= 2;
  if (codes.dtype == formats::DType::kI32) values.shape.back() *= 8;
  const bool is_packed = name.ends_with(".weight_packed");
  const std::string module = is_packed ? name.substr(0, name.size() - 14) : module_of(name);
  const auto find = [&](const std::string& part) {
    const auto found = tensors.find(part);
    return found == tensors.end() ? nullptr : &found->second;
  };
  const auto number = [&](const std::string& suffix, float otherwise) {
    const OutputTensor* tensor = find(module + suffix);
    return tensor == nullptr ? otherwise : scale_values(*tensor).at(0);
  };
  const OutputTensor* scale = find(name + "_scale_inv");
  for (const char* suffix : {".weight_scale", ".deq_scale"}) {
    if (scale == nullptr) scale = find(module + suffix);
  }
  if (scale == nullptr) return values;

  if (const OutputTensor* offset = find(module + ".weight_offset")) {
    const std::vector<float> offsets = scale_values(*offset);
    for (std::size_t i = 0; i < values.numbers.size(); ++i)
      values.numbers[i] -= offsets.at(i / values.cols());
  }
  std::vector<float> scales = scale_values(*scale);
  const bool folds_input = find(module + ".deq_scale") != nullptr;
  for (float& one : scales) {
    one *= number(".weight_scale_2", 1);
    one /= number(".weight_global_scale", 1);
    if (folds_input) one /= number(".input_scale", 1);
  }
  ScaleGrid(*scale, values, config, module).scale(values.numbers, scales);
  return values;
}

inline formats::Json config_of(const std::filesystem::path& directory) {
  return formats::read_json_file(directory / "config.json", 1 << 20);
}

/// Every weight, norm and bias of a directory.
inline ValuesByName values_of(const OutputTensors& tensors, const formats::Json& config) {
  ValuesByName values;
  for (const auto& [name, tensor] : tensors) {
    if (is_beside_a_weight(name)) continue;
    const bool is_packed = name.ends_with("_packed");
    values.emplace(is_packed ? name.substr(0, name.size() - 7) : name,
                   decoded_by_hand(tensors, name, config));
  }
  return values;
}

}  // namespace ingot::testing
