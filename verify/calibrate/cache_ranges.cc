#include "verify/calibrate/cache_ranges.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <span>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/dialect/dialect.h"
#include "formats/records/calibration.h"
#include "inference/model/spec/layer_cache.h"
#include "inference/model/spec/mixer_specs.h"

namespace ingot::verify {

using inference::CacheStream;

namespace {

// The module of the attention in a block: the one that its output projection is in.
std::optional<std::string> attention_of(const formats::Checkpoint& source, std::uint32_t layer,
                                        std::uint8_t block) {
  for (const formats::LogicalTensor& tensor : source.tensors()) {
    if (tensor.rule == nullptr || tensor.layer != layer || tensor.rule->block != block ||
        tensor.rule->role != formats::Role::kOProj)
      continue;
    const std::string_view module = formats::module_name(tensor.name);
    return std::string(module.substr(0, module.rfind('.')));
  }
  return std::nullopt;
}

bool is_vector(const CacheStream& stream) {
  return stream.width > 0 && !stream.is_state && stream.every == 1;
}

}  // namespace

CacheRanges::CacheRanges(const formats::Checkpoint& source, const inference::ModelSpec& spec) {
  const inference::Profile profile = inference::Profile::kF32;
  for (std::size_t l = 0; l < spec.layers.size(); ++l) {
    std::size_t first_stream = 0;
    for (const inference::BlockSpec& block : spec.layers[l].blocks) {
      const std::vector<CacheStream> streams =
          inference::block_streams(block, {}, profile, inference::plain_kv_format(profile));
      const std::size_t first = first_stream;
      first_stream += streams.size();
      if (streams.size() < 2 || !is_vector(streams[0]) ||
          block.as<inference::CompressedSpec>() != nullptr)
        continue;
      const auto module = attention_of(source, static_cast<std::uint32_t>(l), block.number);
      if (!module) continue;
      const bool is_latent = block.as<inference::LatentSpec>() != nullptr;
      if (!is_latent && !is_vector(streams[1])) continue;
      const std::array endings = is_latent ? std::array{formats::kLatentAmax, formats::kRopeKeyAmax}
                                           : std::array{formats::kKeyAmax, formats::kValueAmax};
      for (std::size_t i = 0; i < endings.size(); ++i) {
        if (!is_vector(streams[i])) continue;  // latent attention without rotated keys
        const std::size_t group = streams[i].group > 0 ? streams[i].group : streams[i].width;
        const std::size_t heads = is_latent ? 1 : streams[i].width / group;
        ranges_[{l, first, i}] = {.tensor = fmt::format("{}{}", *module, endings[i]),
                                  .amax = std::vector<float>(heads)};
      }
    }
  }
}

std::vector<formats::TensorSpec> CacheRanges::tensors(std::size_t n_layers) const {
  std::vector<formats::TensorSpec> tensors;
  for (const auto& [place, range] : ranges_) {
    if (place.layer >= n_layers) continue;
    tensors.push_back(
        {.name = range.tensor, .dtype = formats::DType::kF32, .shape = {range.amax.size()}});
  }
  return tensors;
}

void CacheRanges::begin(std::size_t layer) {
  for (auto& [place, range] : ranges_) {
    if (place.layer == layer) std::ranges::fill(range.amax, 0.0F);
  }
}

void CacheRanges::see(std::size_t layer, std::size_t first_stream, std::size_t stream,
                      formats::MatrixView<const float> values) {
  const auto found = ranges_.find({layer, first_stream, stream});
  if (found == ranges_.end()) return;
  std::vector<float>& amax = found->second.amax;
  const std::size_t width = values.cols / amax.size();
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c)
      amax[c / width] = std::max(amax[c / width], std::fabs(values.row(r)[c]));
  }
}

void CacheRanges::write(std::size_t layer, PlannedFile& file) const {
  for (const auto& [place, range] : ranges_) {
    if (place.layer == layer) file.put(range.tensor, std::as_bytes(std::span(range.amax)));
  }
}

}  // namespace ingot::verify
