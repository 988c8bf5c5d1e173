#include "convert/recipe/kv_ranges.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "formats/checkpoint/stored_caches.h"
#include "formats/json/json.h"

namespace ingot::convert {
namespace {

constexpr float kLargestE4m3 = 448.0F;

struct KvStatistic {
  std::string_view ending;
  bool is_latent, is_of_keys;
};
constexpr std::array kKvStatistics = {
    KvStatistic{formats::kKeyAmax, false, true}, KvStatistic{formats::kValueAmax, false, false},
    KvStatistic{formats::kRopeKeyAmax, true, true}, KvStatistic{formats::kLatentAmax, true, false}};

/// The multiplier under which the largest value becomes the largest code.
float kv_scale_of(float amax) {
  const float scale = amax / kLargestE4m3;
  return scale > 0 ? scale : 1.0F;
}

}  // namespace

KvRanges KvRanges::read(const std::filesystem::path& path) {
  KvRanges read;
  if (path.extension() == ".json") {
    constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 20;
    const std::string text = read.open_other(path, kMostBytes);
    read.by_layer_ =
        formats::legacy_cache_scales(formats::parse_json(text, path.string()), path.string());
    return read;
  }
  read.open(path);
  ErrorList errors;
  for (const KvStatistic& statistic : kKvStatistics) {
    read.file().for_each(statistic.ending, [&](const std::string& module, const auto& tensor) {
      Range& range = read.ranges_[module];
      range.is_latent = range.is_latent || statistic.is_latent;
      float& largest = statistic.is_of_keys ? range.keys : range.values;
      (statistic.is_of_keys ? range.has_keys : range.has_values) = true;
      for (const float value : read.file().values(tensor)) {
        if (!(value >= 0) || !std::isfinite(value))
          errors.add(ErrorCode::kCorrupt, module, "has a largest magnitude of {} ({})", value,
                     statistic.ending.substr(1));
        largest = std::max(largest, value);
      }
    });
  }
  for (const auto& [module, range] : read.ranges_) {
    // Latent attention without positions has no rotated keys.
    if (range.has_values && (range.has_keys || range.is_latent)) continue;
    errors.add(ErrorCode::kCorrupt, module,
               "has only half of its ranges (k_amax and v_amax, or latent_amax and "
               "rope_key_amax)");
  }
  if (read.ranges_.empty())
    errors.add(Error(ErrorCode::kCorrupt, "has no ranges of keys and values"));
  read.throw_if_any(errors);
  return read;
}

std::map<std::string, formats::CachePair> KvRanges::scales_for(
    const formats::Checkpoint& source, bool is_part, std::vector<std::string>& without) const {
  std::map<std::string, formats::CachePair> scales;
  ErrorList errors;
  const std::vector<formats::CachedModule> modules = formats::cached_modules(source);
  for (const auto& [name, amax] : ranges_) {
    const auto module = std::ranges::find(modules, name, &formats::CachedModule::name);
    if (module == modules.end()) {
      if (is_part) continue;
      errors.add(ErrorCode::kMismatch, name,
                 "has a range in the statistics of --kv-scales, and the model has no such cache "
                 "(calibrate this model)");
      continue;
    }
    if (module->is_latent != amax.is_latent) {
      errors.add(ErrorCode::kMismatch, name,
                 "has another kind of cache in the statistics of --kv-scales (calibrate this "
                 "model)");
      continue;
    }
    const float joint = std::max(amax.keys, amax.values);
    scales.emplace(name,
                   formats::CachePair{.keys = kv_scale_of(amax.is_latent ? joint : amax.keys),
                                      .values = kv_scale_of(amax.is_latent ? joint : amax.values)});
  }
  std::set<std::uint32_t> layers;
  for (const formats::CachedModule& module : modules) {
    const auto own = module.layer ? by_layer_.find(*module.layer) : by_layer_.end();
    if (own != by_layer_.end()) {
      layers.insert(own->first);
      scales.emplace(module.name, formats::CachePair{.keys = own->second, .values = own->second});
      continue;
    }
    if (ranges_.contains(module.name)) continue;
    const bool is_mtp = module.layer && *module.layer >= source.config().num_hidden_layers;
    if (is_mtp) {
      without.push_back(module.name);
    } else if (module.first->rule->spare == nullptr) {
      errors.add(ErrorCode::kMissingTensor, module.name,
                 "has no range of its cache in the statistics of --kv-scales");
    }
  }
  for (const auto& [layer, unused] : by_layer_) {
    if (layers.contains(layer) || is_part) continue;
    errors.add(Error(ErrorCode::kMismatch,
                     "--kv-scales has a scale of layer {}, and the model has no such cache (take "
                     "the file of this model)",
                     layer));
  }
  errors.throw_if_any();
  return scales;
}

}  // namespace ingot::convert
