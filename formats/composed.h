#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"

namespace ingot::formats {

/// The name of the giver that has all tensors which are not taken from another.
inline constexpr std::string_view kBaseGiver = "base";

/// A logical tensor of one of the givers.
struct TakenTensor {
  std::uint32_t giver = 0;   ///< index into the givers
  std::uint32_t tensor = 0;  ///< index into its tensors()
};

/// One model whose tensors several checkpoints give: the first of them is the base, whose config,
/// directory and side files the model has. No byte changes: each tensor has the parts and the
/// encoding that its giver has, and Checkpoint::giver_of() tells by whose words it is read. Its
/// tensors have the order of `taken`, of which no two have one name. Files of other givers are
/// named `GIVER/FILE`; StoredBytes::home_file() is the file that has the tensor in the base, else
/// one of its own (`model-GIVER-00001-of-00002.safetensors`). MTP layers that were taken count.
/// `remarks` come after the base's.
Checkpoint composed(std::vector<Giver> givers, std::span<const TakenTensor> taken,
                    const std::vector<std::string>& remarks = {});

/// How engines treat the activations of each weight of a checkpoint, by the words of its giver.
class StoredActivations {
 public:
  /// `model` must outlive this. Throws kCorrupt as SourceActivations does.
  explicit StoredActivations(const Checkpoint& model);

  /// The words of the checkpoint that gave a tensor.
  [[nodiscard]] const SourceActivations& said_of(const LogicalTensor& tensor) const {
    return said_.at(tensor.giver);
  }
  [[nodiscard]] Activations of(const LogicalTensor& tensor) const {
    return said_of(tensor).of(tensor.name, tensor.encoding);
  }

 private:
  std::vector<SourceActivations> said_;  // by giver
};

/// True if a tensor of a composed checkpoint is not of the base.
inline bool is_taken(const LogicalTensor& tensor) {
  return tensor.giver != 0;
}

}  // namespace ingot::formats
