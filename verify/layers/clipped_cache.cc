#include "verify/layers/clipped_cache.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>

#include "formats/checkpoint/stored_caches.h"
#include "formats/container/float8.h"
#include "inference/cache/kv_cache.h"
#include "inference/model/spec/mixer_specs.h"

namespace ingot::verify {

using inference::CacheStream;
using inference::KvFormat;

namespace {

// The largest code of E4M3 and half a step, which rounding to the nearest may cost there.
constexpr float kMostUnclipped = 448 + 16;

void add_value(float value, float scale, ScaledCodes& codes) {
  const float scaled = value / scale;
  if (std::fabs(scaled) > kMostUnclipped) ++codes.clipped;
  const float decoded = formats::kE4m3Values[formats::e4m3_from_float(scaled)] * scale;
  const double error = static_cast<double>(decoded) - static_cast<double>(value);
  codes.error2 += error * error;
}

std::vector<inference::StaticScales> scales_of_layers(const formats::Checkpoint& model,
                                                      std::size_t n_layers) {
  const auto stored = formats::read_cache_scales(model);
  std::vector<inference::StaticScales> scales(n_layers);
  for (const formats::CachedModule& module : formats::cached_modules(model)) {
    const auto own = stored.find(module.name);
    if (own == stored.end() || !module.layer || *module.layer >= n_layers) continue;
    scales[*module.layer] = {.keys = own->second.keys, .values = own->second.values};
  }
  return scales;
}

}  // namespace

double ClippedCache::clipped(const ScaledCodes& codes) const {
  return values == 0 ? 0 : static_cast<double>(codes.clipped) / static_cast<double>(values);
}

double ClippedCache::relative_error(const ScaledCodes& codes) const {
  return codes.error2 == 0 ? 0 : std::sqrt(codes.error2 / source2);
}

void ClippedCache::add(const ClippedCache& other) {
  values += other.values;
  source2 += other.source2;
  stored.clipped += other.stored.clipped;
  stored.error2 += other.stored.error2;
  at_one.clipped += other.at_one.clipped;
  at_one.error2 += other.at_one.error2;
}

CacheScaleCheck::CacheScaleCheck(const formats::Checkpoint& model, const inference::ModelSpec& spec)
    : layers_(spec.layers.size()) {
  const auto scales = scales_of_layers(model, layers_.size());
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (scales[l].keys.empty() || scales[l].values.empty()) continue;
    std::size_t first = 0;
    for (const inference::BlockSpec& block : spec.layers[l].blocks) {
      const auto streams = inference::block_streams(block, {}, inference::Profile::kNative,
                                                    KvFormat::kFp8Static, &scales[l]);
      const bool is_latent = block.as<inference::LatentSpec>() != nullptr;
      const std::array<std::string_view, 2> kinds =
          is_latent ? std::array<std::string_view, 2>{"latents", "rope keys"}
                    : std::array<std::string_view, 2>{"keys", "values"};
      for (std::size_t i = 0; i < std::min(streams.size(), kinds.size()); ++i) {
        const CacheStream& stream = streams[i];
        if (stream.format == KvFormat::kFp8Static && stream.width > 0 && !stream.fixed.empty())
          layers_[l].push_back({.stream = stream, .of = kinds[i], .number = first + i});
      }
      first += streams.size();
    }
  }
}

void CacheScaleCheck::begin(std::size_t layer, std::size_t first_row) {
  layer_ = layer;
  first_row_ = first_row;
  figures_.clear();
  for (const Kind& kind : layers_.at(layer)) figures_.push_back({.of = kind.of});
}

void CacheScaleCheck::see(std::size_t first_stream, std::size_t stream,
                          formats::MatrixView<const float> values) {
  const std::vector<Kind>& kinds = layers_.at(layer_);
  for (std::size_t k = 0; k < kinds.size(); ++k) {
    const CacheStream& form = kinds[k].stream;
    if (kinds[k].number != first_stream + stream || values.cols != form.width) continue;
    const std::size_t group = form.group > 0 ? form.group : form.width;
    ClippedCache& figure = figures_[k];
    for (std::size_t r = first_row_; r < values.rows; ++r) {
      const std::span row(values.row(r), values.cols);
      for (std::size_t c = 0; c < row.size(); ++c) {
        figure.source2 += static_cast<double>(row[c]) * static_cast<double>(row[c]);
        add_value(row[c], form.fixed.at(c / group), figure.stored);
        add_value(row[c], 1, figure.at_one);
      }
      figure.values += row.size();
    }
  }
}

}  // namespace ingot::verify
