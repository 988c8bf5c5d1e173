#include "formats/checkpoint/stored_caches.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "formats/base/fd.h"
#include "formats/base/words.h"
#include "formats/checkpoint/stored_facts.h"
#include "formats/json/json.h"
#include "formats/storage/block_scales.h"

namespace ingot::formats {
namespace {

constexpr std::array kCacheSides = {CacheSide::kKeys, CacheSide::kValues, CacheSide::kQueries,
                                    CacheSide::kProbabilities};
constexpr std::uint64_t kMostScalesBytes = std::uint64_t{16} << 20;

bool is_good_scale(float scale) {
  return scale > 0 && std::isfinite(scale);
}

/// Heads that may have a scale each.
std::uint64_t heads_of_side(CacheSide side, const ModelConfig& config) {
  return side == CacheSide::kQueries || side == CacheSide::kProbabilities
             ? config.num_attention_heads
             : config.num_key_value_heads;
}

std::vector<float>& numbers_of_side(CacheScales& scales, CacheSide side) {
  switch (side) {
    case CacheSide::kQueries:
      return scales.queries;
    case CacheSide::kProbabilities:
      return scales.probabilities;
    case CacheSide::kValues:
      return scales.values;
    default:
      return scales.keys;
  }
}

/// The numbers of a layer that a file of scales has, where no tensor has any.
std::map<std::string, CacheScales> scales_of_file(const Checkpoint& checkpoint) {
  const auto text = read_text_file(checkpoint.directory() / kCacheScalesFile, kMostScalesBytes);
  const std::map<std::uint32_t, float> layers =
      legacy_cache_scales(parse_json(text, kCacheScalesFile), kCacheScalesFile);
  std::map<std::string, CacheScales> scales;
  for (const CachedModule& module : cached_modules(checkpoint)) {
    const auto found = module.layer ? layers.find(*module.layer) : layers.end();
    if (found != layers.end())
      scales.emplace(module.name, CacheScales{.keys = {found->second}, .values = {found->second}});
  }
  return scales;
}

}  // namespace

StoredCaches stored_caches(const TensorSource& source) {
  StoredCaches caches;
  for (const LogicalTensor& tensor : source.tensors()) {
    if (!is_cache_scale(tensor.rule)) continue;
    const StoredTensor& stored = source.stored()[tensor.encoding.stored.weight()];
    if (const auto name = cache_scale_name(tensor.name))
      caches[name->block].push_back({&tensor, &stored, *name});
  }
  return caches;
}

std::vector<CacheFault> cache_form_faults(std::span<const StoredCacheScale> scales,
                                          const ModelConfig& config) {
  std::vector<CacheFault> faults;
  const auto has = [&](CacheSide side) {
    return std::ranges::any_of(scales, [&](const auto& scale) { return scale.is_of(side); });
  };
  const bool lacks_keys = has(CacheSide::kValues) && !has(CacheSide::kKeys);
  for (const StoredCacheScale& scale : scales) {
    if (lacks_keys && scale.is_of(CacheSide::kValues))
      faults.push_back({&scale, ErrorCode::kMissingTensor,
                        "is the scale of the cache's values, and there is none of its keys: "
                        "vLLM stops with an assertion"});
    if (scale.name.side == CacheSide::kOffset) continue;
    const std::uint64_t heads = heads_of_side(scale.name.side, config);
    const auto n = element_count(scale.stored->shape);
    if (n != std::uint64_t{1} && (!n || *n != heads))
      faults.push_back(
          {&scale, ErrorCode::kShapeMismatch,
           fmt::format("has shape {}: a scale of the cache is one number, or one per head ({})",
                       shape_text(scale.stored->shape), heads)});
  }
  return faults;
}

std::vector<CacheFault> cache_value_faults(std::span<const StoredCacheScale> scales,
                                           std::span<const std::vector<float>> values) {
  INGOT_CHECK(scales.size() == values.size());
  std::vector<CacheFault> faults;
  for (std::size_t i = 0; i < scales.size(); ++i) {
    if (scales[i].name.side == CacheSide::kOffset) continue;
    const auto bad = std::ranges::find_if_not(values[i], is_good_scale);
    if (bad != values[i].end())
      faults.push_back({&scales[i], ErrorCode::kBadScale,
                        fmt::format("is {}: a scale of the cache is finite and above zero", *bad)});
  }
  for (const CacheSide side : kCacheSides) {
    std::vector<std::string_view> names;
    std::set<std::vector<float>> different;
    const StoredCacheScale* last = nullptr;
    for (std::size_t i = 0; i < scales.size(); ++i) {
      // NaN has no place in an order, and is told of by itself.
      if (!scales[i].is_of(side) || values[i].empty() ||
          !std::ranges::all_of(values[i], is_good_scale))
        continue;
      names.push_back(scales[i].tensor->name);
      different.insert(values[i]);
      last = &scales[i];
    }
    if (different.size() > 1)
      faults.push_back(
          {last, ErrorCode::kMismatch,
           fmt::format("is another value than that of a second spelling, and loaders read both as "
                       "one parameter ({})",
                       fmt::join(names, ", "))});
  }
  return faults;
}

std::vector<CachedModule> cached_modules(const TensorSource& source) {
  std::vector<CachedModule> modules;
  for (const LogicalTensor& tensor : source.tensors()) {
    const Role role = role_of(tensor);
    const bool is_latent = role == Role::kKvaProj;
    const bool is_joined = tensor.rule != nullptr && tensor.rule->fine == FineRole::kQkvProj;
    if (!is_latent && !is_joined && role != Role::kKProj) continue;
    const std::string_view projection = module_name(tensor.name);
    modules.push_back({.name = std::string(projection.substr(0, projection.rfind('.'))),
                       .layer = tensor.layer,
                       .is_latent = is_latent,
                       .first = &tensor});
  }
  return modules;
}

std::map<std::string, CacheScales> read_cache_scales(const Checkpoint& checkpoint) {
  std::map<std::string, CacheScales> read;
  ErrorList errors;
  for (const auto& [module, scales] : stored_caches(checkpoint)) {
    std::vector<std::vector<float>> values;
    for (const StoredCacheScale& scale : scales)
      values.push_back(read_small_numbers(checkpoint, scale.tensor->encoding.stored.weight()));
    std::vector<CacheFault> faults = cache_form_faults(scales, checkpoint.config());
    std::ranges::move(cache_value_faults(scales, values), std::back_inserter(faults));
    for (CacheFault& fault : faults)
      errors.add(fault_of(checkpoint.files(), *fault.at->stored, fault.code, "{}", fault.message));
    CacheScales& own = read[std::string(module)];
    for (std::size_t i = 0; i < scales.size(); ++i) {
      own.has_offsets = own.has_offsets || scales[i].name.side == CacheSide::kOffset;
      for (const CacheSide side : kCacheSides) {
        if (scales[i].is_of(side)) numbers_of_side(own, side) = values[i];
      }
    }
    if (own.values.empty()) own.values = own.keys;
  }
  errors.throw_if_any();
  if (!read.empty()) return read;
  const auto is_scales_file = [](const SideFile& side) { return side.path == kCacheScalesFile; };
  if (std::ranges::any_of(checkpoint.side_files(), is_scales_file))
    return scales_of_file(checkpoint);
  if (cache_words(checkpoint).empty()) return read;
  for (CachedModule& module : cached_modules(checkpoint))
    read.emplace(std::move(module.name), CacheScales{.keys = {1}, .values = {1}});
  return read;
}

std::map<std::uint32_t, float> legacy_cache_scales(const Json& document, std::string_view where) {
  const auto refuse = [&](ErrorCode code, std::string fact) {
    return Error(code, std::move(fact)).in_file(std::string(where));
  };
  const Json& ranks = json_member(json_member(document, "kv_cache"), "scaling_factor");
  if (!ranks.is_object() || ranks.empty())
    throw refuse(ErrorCode::kCorrupt, "has no kv_cache.scaling_factor of ranks and layers");
  std::map<std::uint32_t, float> scales;
  for (const auto& [rank, layers] : ranks.items()) {
    if (!layers.is_object())
      throw refuse(ErrorCode::kCorrupt,
                   fmt::format("its kv_cache.scaling_factor of rank {} has no layers", rank));
    for (const auto& [layer, value] : layers.items()) {
      const auto number = number_from<std::uint32_t>(layer);
      if (!number || !value.is_number())
        throw refuse(ErrorCode::kCorrupt,
                     fmt::format("its kv_cache.scaling_factor of rank {} has {} for layer {}", rank,
                                 value.dump(), layer));
      const auto scale = static_cast<float>(value.get<double>());
      if (!is_good_scale(scale))
        throw refuse(ErrorCode::kBadScale,
                     fmt::format("its scale of layer {} is {}: it must be finite and above zero",
                                 layer, scale));
      float& largest = scales[*number];
      largest = std::max(largest, scale);
    }
  }
  return scales;
}

}  // namespace ingot::formats
