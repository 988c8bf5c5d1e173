#include <algorithm>
#include <utility>

#include "convert/run/actions.h"
#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/quality.h"

namespace ingot::convert {

using formats::Part;

namespace {

constexpr std::size_t kBlock = 16;  // of NVFP4: values that share a scale
constexpr std::size_t kBlocksAtOnce = 4096;

// Block scales of a tensor under its own global scale and under the joint one.
struct Scales {
  std::vector<std::byte> before, after;         // as stored
  std::vector<float> effective, new_effective;  // factors of the codes
};

std::vector<float> effective_scales(std::span<const std::byte> stored,
                                    const formats::GlobalScale& global) {
  std::vector<float> scales(stored.size());
  formats::widen_scales(formats::DType::kF8E4M3, stored, global, scales);
  return scales;
}

Scales rescaled(std::vector<std::byte> stored, const formats::GlobalScale& own, float joint) {
  const float ratio = own.divides ? joint / own.value : own.value / joint;
  Scales scales{.before = std::move(stored), .after = {}, .effective = {}, .new_effective = {}};
  scales.after.reserve(scales.before.size());
  for (const std::byte code : scales.before) {
    const float scale = formats::float_from_e4m3(std::to_integer<std::uint8_t>(code)) * ratio;
    const std::uint8_t nearest = formats::e4m3_from_float(scale);
    const bool vanished = nearest == 0 && code != std::byte{0};
    scales.after.push_back(std::byte{vanished ? std::uint8_t{1} : nearest});
  }
  scales.effective = effective_scales(scales.before, own);
  scales.new_effective = effective_scales(scales.after, {.value = joint, .divides = own.divides});
  return scales;
}

// Errors of the values from block `first` on, before against after.
quantize::QualitySums errors_of(std::span<const std::byte> codes, const Scales& scales,
                                std::size_t first) {
  quantize::QualitySums sums;
  std::vector<float> values, decoded;
  for (std::size_t at = 0; at < codes.size(); at += kBlocksAtOnce * kBlock / 2) {
    const auto run = codes.subspan(at, std::min(codes.size() - at, kBlocksAtOnce * kBlock / 2));
    const std::size_t n_blocks = run.size() / (kBlock / 2), begin = first + at / (kBlock / 2);
    values.resize(n_blocks * kBlock);
    decoded.resize(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float code = quantize::E2m1::value(quantize::code_at<4>(run.data(), i));
      values[i] = code * scales.effective[begin + i / kBlock];
      decoded[i] = code * scales.new_effective[begin + i / kBlock];
    }
    sums.add(quantize::measure_quality(
        {.values = {.data = values.data(), .rows = n_blocks, .cols = kBlock, .stride = kBlock},
         .decoded = {.data = decoded.data(), .rows = n_blocks, .cols = kBlock, .stride = kBlock},
         .scales = std::span<const float>(scales.new_effective).subspan(begin, n_blocks),
         .block_rows = 1,
         .block_cols = kBlock}));
  }
  return sums;
}

}  // namespace

TensorResult rescale_blocks(const TensorTask& task) {
  const formats::StoredParts& stored = task.tensor.encoding.stored;
  const formats::ScaleReader reader(task.source, task.tensor, task.scale_policy());
  // Reading judges the scales: a bad one throws.
  (void)reader.read({.first = 0, .n = reader.rows()});
  const float joint = *task.planned.joint_global;
  std::vector<std::byte> bytes(task.source.stored()[stored[Part::kScale]].n_bytes);
  task.source.read(stored[Part::kScale], 0, bytes);
  const Scales scales = rescaled(std::move(bytes), *reader.global(), joint);

  TensorResult result;
  result.quality.emplace();
  std::map<Part, Hash128> read;
  for (std::size_t p = 0; p < task.planned.n_parts; ++p) {
    const Part part = task.planned.parts[p].part;
    if (part == Part::kScale || part == Part::kGlobal) {
      PartWriter writer = task.part(p);
      writer.write(part == Part::kScale ? std::span<const std::byte>(scales.after)
                                        : std::as_bytes(std::span(&joint, 1)));
      result.output.push_back(writer.finish());
      continue;
    }
    BandLoop::Look look;
    if (part == Part::kWeight) {
      look = [&](const Band& band, std::span<const std::byte> codes) {
        result.quality->add(errors_of(codes, scales, band.source_offset / (kBlock / 2)));
      };
    }
    BandLoop::Copied copied = task.loop.copy(stored[part], task.part(p), look);
    read[part] = copied.source;
    result.output.push_back(std::move(copied.output));
  }
  result.source = task.source_hashes(read);
  return result;
}

}  // namespace ingot::convert
