#include "formats/cache_views.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "formats/checkpoint/stored_caches.h"
#include "formats/experts/expert_view.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "formats/storage/block_scales.h"

namespace ingot::formats {
namespace {

constexpr std::array kWrittenSides = {CacheSide::kKeys, CacheSide::kValues, CacheSide::kQueries,
                                      CacheSide::kProbabilities};

/// A scale of the view.
struct SeenScale {
  std::string name;
  std::function<std::vector<float>(const Checkpoint&)> make;
};
/// By the stored tensors of the source at whose places they are.
using SeenScales = std::multimap<std::uint32_t, SeenScale>;

/// The one number that serves all heads.
std::vector<float> joint_scale(const Checkpoint& source, std::uint32_t stored) {
  const std::vector<float> numbers = read_small_numbers(source, stored);
  float largest = 0;
  for (const float number : numbers) {
    if (!(number > 0) || !std::isfinite(number))
      throw fault_of(source.files(), source.stored()[stored], ErrorCode::kBadScale,
                     "is {}: a scale of the cache is finite and above zero", number);
    largest = std::max(largest, number);
  }
  if (numbers.empty())
    throw fault_of(source.files(), source.stored()[stored], ErrorCode::kBadScale,
                   "has no numbers that are read as scales of a cache");
  return {largest};
}

void add_seen_scale(ExpertView& view, const LogicalTensor& place, const SeenScale& scale) {
  LogicalTensor tensor;
  tensor.name = scale.name;
  tensor.shape = {1};
  tensor.rule = &kCacheScaleRule;
  tensor.layer = place.layer;
  tensor.encoding.scheme = SchemeId::kF32;
  tensor.encoding.stored =
      StoredParts(view.add(scale.name, tensor.shape,
                           {.nest = Nest(32, {{.n = 1, .stride = 1}}),
                            .pieces = {{.stored = place.encoding.stored.weight()}},
                            .make =
                                [make = scale.make](const Checkpoint& source) {
                                  const std::vector<float> numbers = make(source);
                                  const auto bytes = std::as_bytes(std::span(numbers));
                                  return std::vector(bytes.begin(), bytes.end());
                                },
                            .made_dtype = DType::kF32}));
  view.add(std::move(tensor));
}

/// The model with these scales in place of all that it has.
Checkpoint with_seen_scales(std::shared_ptr<const Checkpoint> source, const SeenScales& scales,
                            std::string remark = {}) {
  ExpertView view(*source);
  for (const LogicalTensor& tensor : source->tensors()) {
    if (!is_cache_scale(tensor.rule)) view.keep(tensor);
    const auto [first, last] = scales.equal_range(tensor.encoding.stored.weight());
    for (auto scale = first; scale != last; ++scale) add_seen_scale(view, tensor, scale->second);
  }
  Draft draft = source->draft_of_view();
  if (!remark.empty()) draft.remarks.push_back(std::move(remark));
  return view.finish(std::move(source), std::move(draft));
}

}  // namespace

Checkpoint with_spelled_caches(std::shared_ptr<const Checkpoint> source, const CacheNames& names) {
  SeenScales spelled;
  std::size_t n_joined = 0;
  for (const auto& [module, scales] : stored_caches(*source)) {
    const auto of_side = [&scales = scales](CacheSide side) {
      return std::ranges::find_if(
          scales, [side](const StoredCacheScale& scale) { return scale.is_of(side); });
    };
    for (const CacheSide side : kWrittenSides) {
      auto scale = of_side(side);
      // Keys serve both where values have no scale.
      if (scale == scales.end() && side == CacheSide::kValues) scale = of_side(CacheSide::kKeys);
      if (scale == scales.end()) continue;
      if (element_count(scale->stored->shape) != std::uint64_t{1}) ++n_joined;
      const std::uint32_t stored = scale->tensor->encoding.stored.weight();
      spelled.emplace(stored, SeenScale{.name = std::string(module).append(names.of(side)),
                                        .make = [stored](const Checkpoint& from) {
                                          return joint_scale(from, stored);
                                        }});
    }
  }
  return with_seen_scales(
      std::move(source), spelled,
      n_joined == 0 ? ""
                    : fmt::format("{} scale(s) per head of the key-value cache become one number "
                                  "each, the largest, since loaders of the target take no others",
                                  n_joined));
}

Checkpoint with_made_caches(std::shared_ptr<const Checkpoint> source, const CacheNames& names,
                            const std::map<std::string, CachePair>& pairs, std::string remark) {
  SeenScales made;
  const std::vector<CachedModule> modules = cached_modules(*source);
  for (const auto& [name, pair] : pairs) {
    const auto module = std::ranges::find(modules, name, &CachedModule::name);
    INGOT_CHECK(module != modules.end());
    const auto add = [&, &name = name](std::string_view ending, float scale) {
      made.emplace(module->first->encoding.stored.weight(),
                   SeenScale{.name = name + std::string(ending),
                             .make = [scale](const Checkpoint&) { return std::vector{scale}; }});
    };
    add(names.keys, pair.keys);
    add(names.values, pair.values);
  }
  return with_seen_scales(std::move(source), made, std::move(remark));
}

bool makes_caches(const Manifest& output) {
  return !json_member(json_member(output.recipe, "choices"), "kv_scales").is_null();
}

std::set<std::string> cache_names_of(const TensorSource& output) {
  std::set<std::string> names;
  for (const LogicalTensor& tensor : output.tensors()) {
    if (is_cache_scale(tensor.rule)) names.insert(tensor.name);
  }
  return names;
}

Checkpoint with_caches_as_in(Checkpoint source, const CachesHeld& held) {
  const std::set<std::string> own = cache_names_of(source);
  if (own.empty() || held.names.empty()) return source;
  if (!held.are_made && std::ranges::includes(own, held.names)) return source;
  auto from = std::make_shared<const Checkpoint>(std::move(source));
  if (held.are_made) return with_seen_scales(std::move(from), {});
  const auto is_plain = [](const std::string& name) {
    return cache_scale_name(name)->spelling == kPlainCacheNames.keys;
  };
  const bool has_plain = std::ranges::any_of(held.names, is_plain);
  return with_spelled_caches(std::move(from), has_plain ? kPlainCacheNames : kProjectionCacheNames);
}

}  // namespace ingot::formats
