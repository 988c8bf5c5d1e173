#include "formats/family/cache_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/checkpoint/cache_words.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

// Scales of a quantized cache of keys and values: they have a meaning only together with the
// config's word for them, and go where it goes.

namespace ingot::convert {

using formats::Json;
using formats::LogicalTensor;

namespace {

// The least and the largest of the values that are here to be read.
struct Range {
  float least = std::numeric_limits<float>::infinity();
  float largest = -std::numeric_limits<float>::infinity();

  void add(const formats::Checkpoint& source, const LogicalTensor& tensor) {
    try {
      const std::uint32_t stored = tensor.encoding.stored.weight();
      for (const float value : formats::read_small_numbers(source, stored)) {
        least = std::fmin(least, value);
        largest = std::fmax(largest, value);
      }
    } catch (const Error&) {
      return;  // a run that resumes may have consumed the file: the output needs none of it
    }
  }

  [[nodiscard]] std::string text() const {
    return least > largest ? std::string() : fmt::format(", {} to {}", least, largest);
  }
};

}  // namespace

bool keeps_caches(const Plan& plan) {
  if (plan.is_whole_copy) return true;
  if (plan.target.dialect != &plan.source.dialect()) return false;
  const bool is_target_quantized = std::ranges::any_of(plan.tensors, [](const PlannedTensor& t) {
    return t.action != Action::kDrop && is_quantized(t.to);
  });
  return is_target_quantized ||
         std::ranges::none_of(plan.source.tensors(), [](const LogicalTensor& tensor) {
           return is_quantized(tensor.encoding.scheme);
         });
}

void take_over_caches(const Json& source, Json& block) {
  if (!source.is_object() || !block.is_object()) return;
  for (const auto& [key, value] : source.items()) {
    if (key.starts_with("kv_cache")) block[key] = value;
  }
}

void drop_cache_scales(Plan& plan) {
  const std::string words = formats::cache_words(plan.source);
  if (words.empty() || keeps_caches(plan)) return;
  std::size_t n_dropped = 0;
  Range range;
  for (PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (planned.action == Action::kDrop || !formats::is_cache_scale(tensor.rule)) continue;
    planned.action = Action::kDrop;
    range.add(plan.source, tensor);
    ++n_dropped;
  }
  if (n_dropped == 0) return;
  plan.warnings.push_back(
      fmt::format("{} scale(s) of the key-value cache are left out{}: the source says {}, and the "
                  "output's config has no quantized cache",
                  n_dropped, range.text(), words));
}

}  // namespace ingot::convert
