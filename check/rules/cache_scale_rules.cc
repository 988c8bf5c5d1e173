#include <map>
#include <set>

#include "check/rules/rule_input.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/family/cache_scales.h"
#include "formats/storage/block_scales.h"

// Scales of a quantized cache of keys and values, in every spelling.

namespace ingot::check {
namespace {

using formats::CacheScaleName;
using formats::CacheSide;

struct CacheScale {
  const LogicalTensor* tensor;
  const StoredTensor* stored;
  CacheScaleName name;
};

/// By attention module, in the order of names.
using CacheScales = std::map<std::string_view, std::vector<CacheScale>>;

CacheScales scales_of(const RuleInput& input) {
  CacheScales scales;
  for (const LogicalTensor& tensor : input.weights()) {
    if (!formats::is_cache_scale(tensor.rule)) continue;
    const auto name = formats::cache_scale_name(tensor.name);
    if (name) scales[name->block].push_back({&tensor, &input.codes_of(tensor), *name});
  }
  return scales;
}

bool is_of(const CacheScale& scale, CacheSide side) {
  const CacheSide own = scale.name.side;
  const bool serves_both = side == CacheSide::kKeys || side == CacheSide::kValues;
  return own == side || (own == CacheSide::kBoth && serves_both);
}

/// Heads that may have a scale each.
std::uint64_t heads_of(CacheSide side, const formats::ModelConfig& config) {
  return side == CacheSide::kQueries || side == CacheSide::kProbabilities
             ? config.num_attention_heads
             : config.num_key_value_heads;
}

void cache_scale_form(const RuleInput& input) {
  for (const auto& of_block : scales_of(input)) {
    const std::vector<CacheScale>& scales = of_block.second;
    const auto has = [&](CacheSide side) {
      return std::ranges::any_of(scales, [&](const CacheScale& s) { return is_of(s, side); });
    };
    const bool lacks_keys = has(CacheSide::kValues) && !has(CacheSide::kKeys);
    for (const CacheScale& scale : scales) {
      if (lacks_keys && is_of(scale, CacheSide::kValues))
        input.report_kind(*scale.tensor, kMissingTensor,
                          "is the scale of the cache's values, and there is none of its keys: "
                          "vLLM stops with an assertion");
      if (scale.name.side == CacheSide::kOffset) continue;
      const std::uint64_t heads = heads_of(scale.name.side, input.config());
      const auto n = formats::element_count(scale.stored->shape);
      if (n != std::uint64_t{1} && (!n || *n != heads))
        input.report_kind(*scale.tensor, kShapeMismatch,
                          "has shape {}: a scale of the cache is one number, or one per head ({})",
                          formats::shape_text(scale.stored->shape), heads);
    }
  }
}

/// The numbers of a scale as they are stored; empty when they cannot be read.
std::vector<float> values_of(const RuleInput& input, const CacheScale& scale) {
  return input.first_number(*scale.stored)
             ? formats::read_small_numbers(input.checkpoint, scale.tensor->encoding.stored.weight())
             : std::vector<float>();
}

/// One of the two names of a pair that is read as one parameter.
void judge_spellings(const RuleInput& input, const std::vector<CacheScale>& scales) {
  for (const CacheSide side : {CacheSide::kKeys, CacheSide::kValues, CacheSide::kQueries}) {
    std::vector<std::string_view> names;
    std::set<std::vector<float>> values;
    const CacheScale* last = nullptr;
    for (const CacheScale& scale : scales) {
      std::vector<float> own = values_of(input, scale);
      // NaN has no place in an order, and is told of by itself.
      if (!is_of(scale, side) || own.empty() || std::ranges::any_of(own, is_bad_scale)) continue;
      names.push_back(scale.tensor->name);
      values.insert(std::move(own));
      last = &scale;
    }
    if (values.size() > 1)
      input.report_at(*last->stored, kMismatch,
                      "is another value than that of a second spelling, and loaders read both as "
                      "one parameter ({})",
                      fmt::join(names, ", "));
  }
}

void cache_scale_values(const RuleInput& input) {
  for (const auto& [block, scales] : scales_of(input)) {
    for (const CacheScale& scale : scales) {
      if (scale.name.side == CacheSide::kOffset) continue;
      const std::vector<float> values = values_of(input, scale);
      const auto bad = std::ranges::find_if(values, is_bad_scale);
      if (bad != values.end())
        input.report_at(*scale.stored, kBadScale,
                        "is {}: a scale of the cache is finite and above zero", *bad);
    }
    judge_spellings(input, scales);
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
std::set<std::uint32_t> layers_without(const RuleInput& input, const CacheScales& scales) {
  constexpr formats::RoleSet kCached = {formats::Role::kKProj, formats::Role::kVProj,
                                        formats::Role::kKvaProj};
  std::set<std::uint32_t> layers;
  for (const LogicalTensor& tensor : input.weights()) {
    if (tensor.layer && *tensor.layer < input.config().num_hidden_layers &&
        kCached.has(role_of(tensor)) && is_listed(input, *tensor.layer))
      layers.insert(*tensor.layer);
  }
  for (const auto& [block, own] : scales) {
    for (const CacheScale& scale : own) {
      if (scale.tensor->layer) layers.erase(*scale.tensor->layer);
    }
  }
  return layers;
}

void cache_scale_use(const RuleInput& input) {
  const CacheScales scales = scales_of(input);
  if (scales.empty()) return;
  const std::string words = formats::cache_words(input.checkpoint);
  const std::set<std::uint32_t> without = layers_without(input, scales);
  if (!words.empty() && !without.empty())
    input.report_config(kMissingTensor,
                        "{}, but {} layer(s) have no scales of their cache, which runs at 1.0 "
                        "there: {}",
                        words, without.size(), fmt::join(without, ", "));
  const bool is_latent = input.config().kv_lora_rank > 0;
  const CacheScale *offset = nullptr, *plain = nullptr;
  for (const auto& [block, own] : scales) {
    for (const CacheScale& scale : own) {
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
  if (!scales_of(input).empty()) return;
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
