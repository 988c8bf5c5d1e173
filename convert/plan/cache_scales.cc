#include "formats/family/cache_scales.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "convert/plan/passes.h"
#include "convert/recipe/default_recipes.h"
#include "convert/recipe/kv_ranges.h"
#include "formats/base/pattern.h"
#include "formats/cache_views.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/composed.h"
#include "formats/config/config_meaning.h"
#include "formats/config/nested_config.h"
#include "formats/dialect/cache_words.h"
#include "formats/dialect/dialect.h"
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

// True if the family says that a tensor is a parameter.
bool is_parameter(const LogicalTensor& tensor) {
  const formats::Role role = formats::role_of(tensor);
  const bool is_known = role != formats::Role::kOther && role != formats::Role::kUnknown &&
                        role != formats::Role::kOtherModality;
  return is_known || formats::is_cache_scale(tensor.rule);
}

bool has_any(std::string_view name, std::initializer_list<std::string_view> words) {
  return std::ranges::any_of(
      words, [&](std::string_view word) { return name.find(word) != std::string_view::npos; });
}

// Modules whose numbers are written in another way, and whether they are codes in the source.
using ConvertedModules = std::map<std::string_view, bool>;

// The module that a tensor without a meaning of its own says something of; empty: none. Anything
// next to codes but a bias does, next to plain weights what is called as scales and ranges are.
std::string_view module_told_of(std::string_view name, const ConvertedModules& converted) {
  for (std::size_t dot = name.rfind('.'); dot != std::string_view::npos && dot != 0;
       dot = name.rfind('.', dot - 1)) {
    const auto module = converted.find(name.substr(0, dot));
    if (module == converted.end()) continue;
    const std::string_view rest = name.substr(dot + 1);
    if (rest == "bias" || rest == "weight") return {};
    const bool is_deep = rest.find('.') != std::string_view::npos;
    const bool tells =
        is_deep ? has_any(rest, {"quantizer", "observer", "fake_quant"})
                : module->second || has_any(rest, {"scale", "zero_point", "amax", "amin", "smooth",
                                                   "_max", "_min", "quant", "observer"});
    return tells ? module->first : std::string_view();
  }
  return {};
}

}  // namespace

void settle_words_of_codes(Plan& plan, ErrorList& refusals) {
  ConvertedModules converted;
  std::size_t n_outputs = 0, n_inputs = 0;
  const formats::StoredActivations said(plan.source);
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    const bool has_codes = is_quantized(tensor.encoding.scheme);
    if (planned.action == Action::kCopy || planned.action == Action::kDrop ||
        !(has_codes || planned.action == Action::kQuantize))
      continue;
    converted.emplace(formats::module_name(tensor.name), has_codes);
    if (tensor.encoding.stored.has(formats::Part::kOutputScale)) ++n_outputs;
    const bool has_unused = planned.action == Action::kRewrap && !planned.keeps_input &&
                            tensor.encoding.stored.has(formats::Part::kInputScale) &&
                            said.of(tensor) == formats::Activations::kWeightOnly;
    if (has_unused) ++n_inputs;
  }
  if (n_outputs > 0)
    plan.warnings.push_back(
        fmt::format("{} scale(s) of quantized outputs are left out: only a copy of the codes keeps "
                    "them, and what the config says of them",
                    n_outputs));
  if (n_inputs > 0)
    plan.warnings.push_back(
        fmt::format("{} stored scale(s) of inputs are left out: the output says nothing of "
                    "activations (--activations static takes them)",
                    n_inputs));
  if (converted.empty()) return;
  for (const PlannedTensor& planned : plan.tensors) {
    const LogicalTensor& tensor = plan.tensor_of(planned);
    if (planned.action == Action::kDrop || is_quantized(tensor.encoding.scheme) ||
        is_parameter(tensor) || any_matches(plan.recipe.allow.unknown_tensor, tensor.name))
      continue;
    const std::string_view module = module_told_of(tensor.name, converted);
    if (module.empty()) continue;
    refusals.add(ErrorCode::kUnknownTensor, tensor.name,
                 "says something of the numbers of '{0}', and its meaning for others is not "
                 "known (--rule '{0}*=keep' keeps both; --allow 'unknown-tensor={1}' takes it "
                 "for a parameter of its own)",
                 module, tensor.name);
  }
}

CacheFate cache_fate(const formats::Checkpoint& source, const formats::Dialect& target,
                     bool is_target_quantized) {
  const bool has_words = !formats::cache_words(source).empty();
  if (&target == &source.dialect()) {
    const bool is_kept = !has_words || is_target_quantized || formats::has_plain_only(source);
    return is_kept ? CacheFate::kKept : CacheFate::kLeftOut;
  }
  const bool has_offsets = std::ranges::any_of(source.tensors(), [](const LogicalTensor& tensor) {
    return formats::is_cache_scale(tensor.rule) &&
           formats::cache_scale_name(tensor.name)->side == formats::CacheSide::kOffset;
  });
  using formats::DeclaredCache;
  const DeclaredCache declared =
      std::max(formats::declared_cache(formats::quantization_block(source.config())),
               formats::declared_cache(source.description()));
  if (is_target_quantized && !has_offsets && declared != DeclaredCache::kOther &&
      formats::find_cache_dialect(target.name) != nullptr)
    return CacheFate::kConverted;
  return has_words ? CacheFate::kLeftOut : CacheFate::kKept;
}

namespace {

// True if another checkpoint gives the scales of a cache of which the base says nothing.
bool takes_caches(const Plan& plan) {
  return plan.recipe.choices.composed != nullptr && formats::cache_words(plan.source).empty() &&
         formats::find_cache_dialect(plan.target.dialect->name) != nullptr &&
         std::ranges::any_of(plan.source.tensors(), [](const LogicalTensor& tensor) {
           return formats::is_cache_scale(tensor.rule);
         });
}

}  // namespace

CacheFate cache_fate(const Plan& plan) {
  if (plan.recipe.choices.kv_scales != nullptr) return CacheFate::kMade;
  if (plan.is_whole_copy) return CacheFate::kKept;
  const bool is_quantized_output =
      std::ranges::any_of(plan.tensors, [](const PlannedTensor& planned) {
        return planned.action != Action::kDrop && is_quantized(planned.to);
      });
  if (is_quantized_output && takes_caches(plan)) return CacheFate::kMade;
  return cache_fate(plan.source, *plan.target.dialect, is_quantized_output);
}

namespace {

std::shared_ptr<const formats::Checkpoint> with_made_scales(
    std::shared_ptr<const formats::Checkpoint> source, const formats::Dialect& target,
    const Choices& choices) {
  const formats::CacheDialect* dialect = formats::find_cache_dialect(target.name);
  if (dialect == nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "--kv-scales: engines of dialect {} take no scales of a cache (use --dialect "
                "compressed-tensors or modelopt)",
                target.name);
  }
  if (source->slicing() != nullptr) {
    throw Error(ErrorCode::kUnsupported,
                "--kv-scales needs the whole model (give the directory above, or merge the ranks)")
        .in_file(source->directory().string());
  }
  std::vector<std::string> without;
  const bool is_part = choices.n_layers.has_value();
  const auto scales = choices.kv_scales->scales_for(*source, is_part, without);
  const formats::CacheNames& names =
      formats::written_cache_names(*dialect, source->config().kv_lora_rank > 0);
  return std::make_shared<const formats::Checkpoint>(formats::with_made_caches(
      std::move(source), names, scales,
      without.empty() ? std::string()
                      : fmt::format("{} attention module(s) of MTP layers have no range in the "
                                    "statistics of --kv-scales, and a cache under scale 1: {}",
                                    without.size(), without.front())));
}

}  // namespace

std::shared_ptr<const formats::Checkpoint> with_caches_as_written(
    std::shared_ptr<const formats::Checkpoint> source, const Recipe& recipe) {
  const formats::Dialect& target = target_dialect(recipe, *source);
  if (recipe.choices.kv_scales != nullptr)
    return with_made_scales(std::move(source), target, recipe.choices);
  const bool has_scales = std::ranges::any_of(source->tensors(), [](const LogicalTensor& tensor) {
    return formats::is_cache_scale(tensor.rule);
  });
  if (!has_scales || source->slicing() != nullptr) return source;
  const bool has_quantized_rule = std::ranges::any_of(
      recipe.rules, [](const Rule& rule) { return rule.scheme && is_quantized(*rule.scheme); });
  const bool stays_quantized = !recipe.to && !formats::has_plain_only(*source);
  if (cache_fate(*source, target, has_quantized_rule || stays_quantized) != CacheFate::kConverted)
    return source;
  const formats::CacheNames& names = formats::written_cache_names(
      *formats::find_cache_dialect(target.name), source->config().kv_lora_rank > 0);
  return std::make_shared<const formats::Checkpoint>(
      formats::with_spelled_caches(std::move(source), names));
}

void take_over_caches(const Json& source, Json& block) {
  if (!source.is_object() || !block.is_object()) return;
  for (const auto& [key, value] : source.items()) {
    if (key.starts_with("kv_cache")) block[key] = value;
  }
}

void settle_cache_scales(Plan& plan) {
  const std::string words = formats::cache_words(plan.source);
  const CacheFate fate = cache_fate(plan);
  if (words.empty() && fate != CacheFate::kMade) return;
  const bool needs_flag =
      (fate == CacheFate::kConverted || fate == CacheFate::kMade) &&
      formats::find_cache_dialect(plan.target.dialect->name)->declare == nullptr;
  if (needs_flag) {
    plan.warnings.push_back(
        fmt::format("dialect {} has no word for a quantized cache: engines quantize it only where "
                    "they are told to (--kv-cache-dtype fp8)",
                    plan.target.dialect->name));
  }
  if (fate != CacheFate::kLeftOut) return;
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

// A block or description that is about nothing but the cache is the source's: caches of keys and
// values are quantized or not whatever the weights are.
void state_caches(const Plan& plan, Json& block, Json& description) {
  const Json& source_block = formats::quantization_block(plan.source.config());
  const Json& source_description = plan.source.description();
  const CacheFate fate = cache_fate(plan);
  if (fate == CacheFate::kConverted || fate == CacheFate::kMade) {
    const auto declare = formats::find_cache_dialect(plan.target.dialect->name)->declare;
    const bool is_said = fate == CacheFate::kMade || !formats::cache_words(plan.source).empty();
    if (declare == nullptr || !is_said) return;
    // A block that is about a cache only.
    if (block.is_null() && plan.target.dialect == &plan.source.dialect()) {
      block = source_block;
      description = source_description;
    }
    declare(block, description);
    return;
  }
  if (fate == CacheFate::kLeftOut) return;
  const auto state = [](const Json& source, Json& target) {
    if (formats::cache_words(source).empty()) return;
    if (target.is_null()) {
      target = source;
      return;
    }
    take_over_caches(source, target);
    if (target.contains("quantization"))
      take_over_caches(formats::json_member(source, "quantization"), target["quantization"]);
  };
  state(source_block, block);
  if (plan.target.dialect->description != nullptr) state(source_description, description);
}

}  // namespace ingot::convert
