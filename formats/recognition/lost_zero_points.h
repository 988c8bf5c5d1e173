#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "formats/base/error.h"
#include "formats/dialect/config_groups.h"
#include "formats/recognition/encoding_recognition.h"

namespace ingot::formats {

/// Integers that have zero points by config.json and none in the files: read as if they were
/// symmetric, each value would be wrong.
class LostZeroPoints {
 public:
  explicit LostZeroPoints(const ModelConfig& config);

  /// Takes in weight `name`, stored tensor `i`, which has no zero points. False if by config.json
  /// it needs none.
  bool take(std::string_view name, std::uint32_t i);

  /// A fault (kMissingTensor) for each group of the config, with its first weight and their number.
  void report(const RecognitionInput& input, ErrorList& faults) const;

 private:
  struct Lost {
    std::uint32_t first = 0;
    std::size_t n = 0;
  };

  const ModelConfig& config_;
  std::unique_ptr<ConfigGroups> groups_;  // groups of compressed-tensors, if one is asymmetric
  std::map<std::string, Lost> lost_;      // losses by the group's place in the config
};

}  // namespace ingot::formats
