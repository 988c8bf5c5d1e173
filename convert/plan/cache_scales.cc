#include "formats/family/cache_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "formats/base/pattern.h"
#include "formats/checkpoint/cache_words.h"
#include "formats/dialect/source_activations.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

// Numbers that have a meaning only together with the config's words for them, and go where these
// go: scales of a quantized cache of keys and values, and of inputs and outputs that are quantized.

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

// Whether a tensor is a parameter of its own, by its role in the family or its name.
bool is_parameter(const LogicalTensor& tensor) {
  const formats::Role role = formats::role_of(tensor);
  const bool is_known = role != formats::Role::kOther && role != formats::Role::kUnknown &&
                        role != formats::Role::kOtherModality;
  return is_known || formats::is_cache_scale(tensor.rule) || tensor.name.ends_with(".bias");
}

}  // namespace

void settle_words_of_codes(Plan& plan, Refusals& refusals) {
  std::set<std::string_view> converted;  // modules whose codes are not copied
  std::size_t n_outputs = 0, n_inputs = 0;
  const formats::SourceActivations said(plan.source.config(), plan.source.dialect(),
                                        plan.source.description());
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (!is_quantized(tensor.encoding.scheme) || planned.action == Action::kCopy ||
        planned.action == Action::kDrop)
      continue;
    converted.insert(formats::module_name(tensor.name));
    if (tensor.encoding.stored.has(formats::Part::kOutputScale)) ++n_outputs;
    const bool has_unused =
        planned.action == Action::kRewrap && !planned.keeps_input &&
        tensor.encoding.stored.has(formats::Part::kInputScale) &&
        said.of(tensor.name, tensor.encoding) == formats::Activations::kWeightOnly;
    if (has_unused) ++n_inputs;
  }
  if (n_outputs > 0)
    plan.warnings.push_back(
        fmt::format("{} scale(s) of quantized outputs are left out: only a copy of the codes keeps "
                    "them, and what the config says of them",
                    n_outputs));
  if (n_inputs > 0)
    plan.warnings.push_back(
        fmt::format("{} stored scale(s) of inputs are left out: the source says that activations "
                    "are not quantized (--activations static takes them)",
                    n_inputs));
  if (converted.empty()) return;
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const std::string_view name = tensor.name, module = name.substr(0, name.rfind('.'));
    if (planned.action == Action::kDrop || is_quantized(tensor.encoding.scheme) ||
        name.ends_with(formats::kWeightSuffix) || !converted.contains(module) ||
        is_parameter(tensor) || any_matches(plan.recipe.allow.unknown_tensor, tensor.name))
      continue;
    refusals.add(
        ErrorCode::kUnknownTensor,
        fmt::format("is stored next to the codes of '{0}', and its meaning for them is not "
                    "known (--rule '{0}*=keep' keeps both; --allow 'unknown-tensor={1}' "
                    "takes it for a parameter of its own)",
                    module, name),
        name);
  }
}

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
