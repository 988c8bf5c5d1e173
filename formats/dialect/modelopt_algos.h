#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "formats/dialect/written_groups.h"
#include "formats/modules/module_list.h"

namespace ingot::formats {

/// What ModelOpt calls a scheme with a kind of activations.
struct ModeloptAlgo {
  std::string_view name;  ///< `quant_algo`
  SchemeId scheme{};
  Activations activations{};
  std::uint32_t group_size = 0;  ///< 0: it has none
};
const ModeloptAlgo* find_modelopt_algo(std::string_view name);
const ModeloptAlgo* find_modelopt_algo(SchemeId scheme, Activations activations);

/// What a ModelOpt block says, whether hf_quant_config.json or that of config.json.
class ModeloptBlock {
 public:
  /// Throws kCorrupt when a list is none.
  explicit ModeloptBlock(const Json& block);

  /// What it says of a module; null when that is excluded, or of an algorithm that is not ours.
  [[nodiscard]] const ModeloptAlgo* algo_of(std::string_view module) const;

 private:
  /// Of MIXED_PRECISION, by module.
  std::optional<std::map<std::string, const ModeloptAlgo*, std::less<>>> layers_;
  const ModeloptAlgo* algo_ = nullptr;
  ModuleList excluded_;
};

}  // namespace ingot::formats
