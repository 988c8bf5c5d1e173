#include "convert/recipe/kv_ranges.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <string_view>

#include <fmt/format.h>

#include "check/stored_hashes.h"
#include "formats/base/fd.h"
#include "formats/checkpoint/stored_caches.h"
#include "formats/container/safetensors.h"

namespace ingot::convert {
namespace {

constexpr const char* kRangesFile = "cache.safetensors";
constexpr float kLargestE4m3 = 448.0F;

struct KvStatistic {
  std::string_view ending;
  bool is_latent, is_of_keys;
};
constexpr std::array kKvStatistics = {
    KvStatistic{".k_amax", false, true}, KvStatistic{".v_amax", false, false},
    KvStatistic{".rope_key_amax", true, true}, KvStatistic{".latent_amax", true, false}};

/// The largest of the values; throws kCorrupt for those that are no magnitudes.
float largest_in(const Fd& file, const formats::StoredTensor& tensor) {
  if (tensor.dtype != formats::DType::kF32 || tensor.shape.size() > 1 || tensor.n_bytes == 0) {
    throw Error(ErrorCode::kCorrupt, "is {} {}, must be F32 with a magnitude per head",
                formats::dtype_name(tensor.dtype), formats::shape_text(tensor.shape))
        .in_tensor(tensor.name);
  }
  std::vector<float> values(tensor.n_bytes / sizeof(float));
  file.read_exact(std::as_writable_bytes(std::span(values)), tensor.offset);
  for (const float value : values) {
    if (value >= 0 && std::isfinite(value)) continue;
    throw Error(ErrorCode::kCorrupt, "has a largest magnitude of {}", value).in_tensor(tensor.name);
  }
  return *std::ranges::max_element(values);
}

/// The multiplier under which the largest value becomes the largest code.
float kv_scale_of(float amax) {
  const float scale = amax / kLargestE4m3;
  return scale > 0 ? scale : 1.0F;
}

}  // namespace

KvRanges KvRanges::read(const std::filesystem::path& path) {
  KvRanges read;
  const std::filesystem::path name =
      std::filesystem::is_directory(path) ? path / kRangesFile : path;
  const Fd file = Fd::open_for_reading(name);
  read.file_ = {file.path(), file.stamp()};
  ErrorList errors;
  for (const formats::StoredTensor& tensor : formats::read_safetensors_header(file).tensors) {
    try {
      const auto row = std::ranges::find_if(kKvStatistics, [&](const KvStatistic& statistic) {
        return tensor.name.size() > statistic.ending.size() &&
               tensor.name.ends_with(statistic.ending);
      });
      if (row == kKvStatistics.end()) {
        throw Error(ErrorCode::kCorrupt,
                    "is no range of keys and values (A.k_amax and A.v_amax, or A.latent_amax and "
                    "A.rope_key_amax)")
            .in_tensor(tensor.name);
      }
      Range& range = read.ranges_[tensor.name.substr(0, tensor.name.size() - row->ending.size())];
      range.is_latent = range.is_latent || row->is_latent;
      (row->is_of_keys ? range.keys : range.values) = largest_in(file, tensor);
      (row->is_of_keys ? range.has_keys : range.has_values) = true;
    } catch (const Error& error) {
      errors.add(error);
    }
  }
  for (const auto& [module, range] : read.ranges_) {
    // Latent attention without positions has no rotated keys.
    if (range.has_values && (range.has_keys || range.is_latent)) continue;
    errors.add(ErrorCode::kCorrupt, module,
               "has only half of its ranges (k_amax and v_amax, or "
               "latent_amax and rope_key_amax)");
  }
  if (read.ranges_.empty() && errors.empty())
    errors.add(Error(ErrorCode::kCorrupt, "has no ranges of keys and values"));
  try {
    errors.throw_if_any();
  } catch (Error& error) {
    throw error.in_file(file.path());
  }
  read.hash_ = check::hash_file(file.path());
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
  for (const formats::CachedModule& module : modules) {
    if (ranges_.contains(module.name)) continue;
    const bool is_mtp = module.layer && *module.layer >= source.config().num_hidden_layers;
    if (is_mtp) {
      without.push_back(module.name);
    } else if (module.first->rule->spare == nullptr) {
      errors.add(ErrorCode::kMissingTensor, module.name,
                 "has no range of its cache in the statistics of --kv-scales");
    }
  }
  errors.throw_if_any();
  return scales;
}

}  // namespace ingot::convert
