#include "formats/storage/unread_codes.h"

#include "formats/config/nested_config.h"
#include "formats/json/json.h"

namespace ingot::formats {
namespace {

constexpr DTypeSet kNoCodes = {DType::kBool, DType::kC64, DType::kF64, DType::kI64, DType::kU64};

// True if config.json describes quantization as MLX does, with or without quantization_config.
bool says_quantized(const ModelConfig& config) {
  if (config.quantization && !config.quantization->quant_method.empty()) return false;
  const auto says = [](const Json& block) { return block.is_object() && !block.empty(); };
  return says(quantization_block(config)) || says(json_member(text_keys(config), "quantization"));
}

// Rows of towers take tensors of any kind.
bool has_row(const LogicalTensor& tensor) {
  return tensor.rule != nullptr && tensor.rule->role != Role::kOtherModality;
}

}  // namespace

std::optional<UnreadCodes> unread_codes(const TensorSource& source,
                                        const std::function<bool(const LogicalTensor&)>& is_known) {
  UnreadCodes found{.is_said = says_quantized(source.config())};
  for (const LogicalTensor& tensor : source.tensors()) {
    if (tensor.encoding.scheme != SchemeId::kRaw || has_row(tensor)) continue;
    if (kNoCodes.has(source.stored()[tensor.encoding.stored.weight()].dtype)) continue;
    if (!found.is_said && (tensor.shape.size() < 2 || (is_known && is_known(tensor)))) continue;
    if (found.n++ == 0) found.first = &tensor;
  }
  if (found.n == 0) return std::nullopt;
  return found;
}

}  // namespace ingot::formats
