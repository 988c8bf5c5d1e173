#include <set>

#include "check/rules/rule_input.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/storage/block_scales.h"

// Scales of a quantized cache of keys and values, in every spelling.

namespace ingot::check {
namespace {

using formats::CacheFault;
using formats::CacheSide;
using formats::StoredCaches;
using formats::StoredCacheScale;

void cache_scale_form(const RuleInput& input) {
  for (const auto& [module, scales] : formats::stored_caches(input.checkpoint)) {
    for (const CacheFault& fault : formats::cache_form_faults(scales, input.config()))
      input.report_kind(*fault.at->tensor, fault.code, "{}", fault.message);
  }
}

/// The numbers of a scale as they are stored; empty when they cannot be read.
std::vector<float> values_of(const RuleInput& input, const StoredCacheScale& scale) {
  return input.first_number(*scale.stored)
             ? formats::read_small_numbers(input.checkpoint, scale.tensor->encoding.stored.weight())
             : std::vector<float>();
}

void cache_scale_values(const RuleInput& input) {
  for (const auto& [module, scales] : formats::stored_caches(input.checkpoint)) {
    std::vector<std::vector<float>> values;
    for (const StoredCacheScale& scale : scales) values.push_back(values_of(input, scale));
    for (const CacheFault& fault : formats::cache_value_faults(scales, values))
      input.report_at(*fault.at->stored, fault.code, "{}", fault.message);
  }
}

/// True if a config that lists layers with a quantized cache has this one.
bool is_listed(const RuleInput& input, std::uint32_t layer) {
  const auto has = [&](const Json& object) {
    const Json& layers = json_member(object, "kv_cache_quantized_layers");
    if (!layers.is_object()) return true;
    const std::string number = fmt::format(".{}.", layer);
    return std::ranges::any_of(layers.items(), [&](const auto& entry) {
      return entry.key().find(number) != entry.key().npos;
    });
  };
  return has(input.block()) && has(json_member(input.checkpoint.description(), "quantization"));
}

/// Main layers with a cache of keys and values that have no scale of it.
std::set<std::uint32_t> layers_without(const RuleInput& input, const StoredCaches& scales) {
  constexpr formats::RoleSet kCached = {formats::Role::kKProj, formats::Role::kVProj,
                                        formats::Role::kKvaProj};
  std::set<std::uint32_t> layers;
  for (const LogicalTensor& tensor : input.weights()) {
    if (tensor.layer && *tensor.layer < input.config().num_hidden_layers &&
        kCached.has(role_of(tensor)) && is_listed(input, *tensor.layer))
      layers.insert(*tensor.layer);
  }
  for (const auto& [block, own] : scales) {
    for (const StoredCacheScale& scale : own) {
      if (scale.tensor->layer) layers.erase(*scale.tensor->layer);
    }
  }
  return layers;
}

void cache_scale_use(const RuleInput& input) {
  const StoredCaches scales = formats::stored_caches(input.checkpoint);
  if (scales.empty()) return;
  const std::string words = formats::cache_words(input.checkpoint);
  const std::set<std::uint32_t> without = layers_without(input, scales);
  if (!words.empty() && !without.empty())
    input.report_config(kMissingTensor,
                        "{}, but {} layer(s) have no scales of their cache, which runs at 1.0 "
                        "there: {}",
                        words, without.size(), fmt::join(without, ", "));
  const bool is_latent = input.config().kv_lora_rank > 0;
  const StoredCacheScale *offset = nullptr, *plain = nullptr;
  for (const auto& [block, own] : scales) {
    for (const StoredCacheScale& scale : own) {
      if (scale.name.side == CacheSide::kOffset) offset = &scale;
      if (scale.name.spelling == ".k_scale" || scale.name.spelling == ".v_scale") plain = &scale;
    }
  }
  if (offset != nullptr)
    input.report_at(*offset->stored, kUnsupported,
                    "is subtracted before the cache is quantized: no reader but TensorRT-LLM does "
                    "so (such tensors are kept as they are)");
  if (is_latent && plain != nullptr)
    input.report_at(*plain->stored, kUnsupported,
                    "is mapped by vLLM to a parameter that latent attention lacks, and dropped "
                    "(it reads .k_proj.k_scale and .v_proj.v_scale)");
}

constexpr LoaderRule kCacheScaleRows[] = {
    {"quantized.cache-scales", "", "vLLM, SGLang", kWarning,
     "a quantized cache of keys and values has its scales stored", cache_scales, kAnyScheme, false,
     false, std::nullopt, /*except=*/"modelopt"},
    {"quantized.cache-scale-form", "", "vLLM", kError,
     "scales of the cache come with one of the keys, each a number or one per head",
     cache_scale_form},
    {"quantized.cache-scale-values", "", "vLLM, SGLang", kError,
     "scales of the cache are finite, above zero, and equal in all their spellings",
     cache_scale_values, kAnyScheme, kReadsValues},
    {"quantized.cache-scale-use", "", "vLLM, SGLang", kWarning,
     "every layer has the scales of its cache, under names that loaders use", cache_scale_use},
};

}  // namespace

const RuleTable kCacheScaleRules = kCacheScaleRows;

void cache_scales(const RuleInput& input) {
  if (!formats::stored_caches(input.checkpoint).empty()) return;
  const auto judge = [&](const Json& object, std::string_view file) {
    const std::string words = formats::cache_words(object);
    if (!words.empty())
      input.report_file(file, kMissingTensor,
                        "{}, but no scales of a key-value cache are stored (k_scale, v_scale): it "
                        "is cut to 8 bits under scale 1 (remove the word, or fetch the scales)",
                        words);
  };
  judge(input.block(), "config.json");
  judge(input.checkpoint.description(), input.dialect().description_file);
}

}  // namespace ingot::check
