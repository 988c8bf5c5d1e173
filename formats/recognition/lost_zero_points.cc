#include "formats/recognition/lost_zero_points.h"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

#include "formats/config/nested_config.h"
#include "formats/dialect/other_tools.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

/// True if a group of compressed-tensors has integers with zero points.
bool is_asymmetric(const ConfigGroup& group) {
  const Json& weights = json_member(*group.json, "weights");
  const Json& type = json_member(weights, "type");
  return (type.is_null() || type == "int") && json_member(weights, "symmetric") == false;
}

}  // namespace

LostZeroPoints::LostZeroPoints(const ModelConfig& config) : config_(config) {
  if (!config.quantization || config.quantization->quant_method != "compressed-tensors") return;
  std::vector<std::string> left_out;
  auto groups = std::make_unique<ConfigGroups>(quantization_block(config), &left_out);
  if (std::ranges::any_of(groups->groups(), is_asymmetric)) groups_ = std::move(groups);
}

bool LostZeroPoints::take(std::string_view name, std::uint32_t i) {
  std::string place;
  if (groups_ != nullptr) {
    const std::string_view module = module_name(name);
    const ConfigGroup* group = groups_->stored_group(module);
    if (group == nullptr || !is_asymmetric(*group)) return false;
    place = fmt::format("config_groups.{}", group->name);
  } else if (has_zero_points(config_, name)) {
    place = "quantization_config";
  } else {
    return false;
  }
  Lost& lost = lost_.try_emplace(std::move(place), Lost{.first = i}).first->second;
  ++lost.n;
  return true;
}

void LostZeroPoints::report(const RecognitionInput& input, ErrorList& faults) const {
  for (const auto& [place, lost] : lost_) {
    const StoredTensor& tensor = input.stored[lost.first];
    faults.add(Error(ErrorCode::kMissingTensor,
                     "is asymmetric by config.json ({}) and has no weight_zero_point{} (a file "
                     "missing? fetch it again)",
                     place,
                     lost.n == 1 ? "" : fmt::format(", as {} more of its weights", lost.n - 1))
                   .in_file(input.files[tensor.file].name)
                   .in_tensor(tensor.name));
  }
}

}  // namespace ingot::formats
