#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "formats/adapters/adapter_config.h"
#include "formats/base/fd.h"
#include "formats/base/hash.h"
#include "formats/changes/value_change.h"

namespace ingot::formats {

inline constexpr std::uint32_t kNoTensor = ~std::uint32_t{0};

/// The tensors of an adapter for one module, under the name that its maker gives the module;
/// kNoTensor where it has none.
struct AdapterModule {
  std::uint32_t a = kNoTensor, b = kNoTensor;  ///< `lora_A`, `lora_B`
  std::uint32_t bias = kNoTensor;              ///< `lora_B.bias`
  std::uint32_t lengths = kNoTensor;           ///< `lora_magnitude_vector`
  std::uint32_t token_rows = kNoTensor;        ///< `token_adapter.trainable_tokens_delta`
  bool is_embedding = false;                   ///< `lora_embedding_A` and `_B`
  /// `NAME.lora_A` without `.weight`: a leaf of a module of experts, as serving programs have it.
  bool is_leaf = false;
};

/// A directory of PEFT: its config, and the tensors of its safetensors file by module. Safe from
/// many threads.
class AdapterFile {
 public:
  /// Opens a directory with adapter_config.json and adapter_model.safetensors. Throws kUnsupported
  /// for an adapter_model.bin (pickled), for tensors that are known to no rule here, and for
  /// numbers that are not plain; kCorrupt for a tensor without its other half; kNotFound; and as
  /// parse_adapter_config() does.
  static AdapterFile open(const std::filesystem::path& directory);
  /// Makes one of a config and the stored tensors of a source, with no directory. Throws as open()
  /// does for tensors.
  static AdapterFile of(AdapterConfig config, std::shared_ptr<const TensorSource> tensors);

  [[nodiscard]] const AdapterConfig& config() const { return config_; }
  [[nodiscard]] const std::filesystem::path& directory() const { return directory_; }
  /// Hash of the bytes of both files.
  [[nodiscard]] const Hash128& hash() const { return hash_; }
  [[nodiscard]] const std::vector<std::pair<std::filesystem::path, FileStamp>>& stamps() const {
    return stamps_;
  }
  [[nodiscard]] const std::shared_ptr<const PlainNumbers>& numbers() const { return numbers_; }
  [[nodiscard]] const StoredTensor& tensor(std::uint32_t stored) const {
    return numbers_->tensor(stored);
  }
  /// Tensors that change a module's weights, by module.
  [[nodiscard]] const std::map<std::string, AdapterModule>& modules() const { return modules_; }
  /// Tensors that take the place of the model's, by their names there: of `modules_to_save`,
  /// biases, and copies of the base.
  [[nodiscard]] const std::map<std::string, std::uint32_t>& replaced() const { return replaced_; }
  /// True if two tensors are equal, byte for byte.
  [[nodiscard]] bool holds_same(std::uint32_t one, std::uint32_t other) const;
  /// True if the config or README.md names unsloth.
  [[nodiscard]] bool names_unsloth() const { return names_unsloth_; }

 private:
  void sort_tensors();

  std::filesystem::path directory_;
  AdapterConfig config_;
  Hash128 hash_;
  std::vector<std::pair<std::filesystem::path, FileStamp>> stamps_;
  std::shared_ptr<const PlainNumbers> numbers_;
  std::map<std::string, AdapterModule> modules_;
  std::map<std::string, std::uint32_t> replaced_;
  bool names_unsloth_ = false;
};

}  // namespace ingot::formats
