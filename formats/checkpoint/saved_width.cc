#include "formats/checkpoint/saved_width.h"

#include <algorithm>

#include "formats/family/cache_scales.h"
#include "formats/relaid/decoded_values.h"

namespace ingot::formats {

std::optional<SchemeId> narrower_dtype(const TensorSource& source) {
  const std::string& dtype = source.config().dtype;
  const std::optional<SchemeId> said = dtype == "bfloat16"  ? std::optional(SchemeId::kBf16)
                                       : dtype == "float16" ? std::optional(SchemeId::kF16)
                                                            : std::nullopt;
  if (!said) return std::nullopt;
  const bool is_wider = std::ranges::any_of(source.tensors(), [&](const LogicalTensor& tensor) {
    return tensor.rule != nullptr && tensor.rule->fp8_by_default && is_saved_wider(tensor, *said);
  });
  return is_wider ? said : std::nullopt;
}

bool is_saved_wider(const LogicalTensor& tensor, SchemeId to) {
  const SchemeFacts& from = scheme_facts(tensor.encoding.scheme);
  if (from.quantized || from.id == SchemeId::kRaw || is_decoded(tensor.encoding) ||
      tensor.rule == nullptr || is_cache_scale(tensor.rule) || role_of(tensor) == Role::kUnknown)
    return false;
  const std::uint64_t bits = scheme_facts(to).code_bits;
  return from.code_bits > bits && dtype_bits(tensor.rule->synth_dtype) <= bits;
}

bool has_plain_only(const TensorSource& source) {
  return std::ranges::none_of(source.tensors(), [](const LogicalTensor& tensor) {
    return is_quantized(tensor) || is_decoded(tensor.encoding);
  });
}

}  // namespace ingot::formats
