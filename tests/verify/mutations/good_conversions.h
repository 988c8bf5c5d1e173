#pragma once

#include <filesystem>
#include <string_view>

namespace ingot::testing {

/// The targets of faults: small conversions that are good.
enum class Good {
  kBf16,  ///< of the example, which is FP8
  kFp8,   ///< as released, copied
  kFp8Channel,
  kInt8,  ///< compressed-tensors
  kInt8Modelslim,
  kNvfp4Modelopt,  ///< experts; the global scale multiplies
  kNvfp4Ct,        ///< compressed-tensors: the global scale divides
  kMxfp4,
  kBf16OfMxfp4,  ///< the source is the MXFP4 conversion
  kBf16OfZeros,  ///< the source has a block of zeros
  kNvfp4OfZeros,
  kInt8Ranks,   ///< tp 2 x ep 2
  kNvfp4Ranks,  ///< tp 2 x ep 4
  kBf16Shards,  ///< deepseek-mp for two ranks, without MTP
};

/// The weight whose first 128 x 128 block is zero in the source of the `OfZeros` ones.
inline constexpr std::string_view kZeroWeight = "model.layers.2.mlp.experts.3.up_proj.weight";

/// Two directories to be compared.
struct Pair {
  std::filesystem::path source, output;
};

/// A good conversion, which is made once per process and not to be changed.
const Pair& good_conversion(Good good);

/// Its output below `directory`, which is empty, to be spoiled: hard links, so that a change of a
/// file must make a new one.
Pair copy_of_good(Good good, const std::filesystem::path& directory);

/// Cuts the example for another topology than kInt8Ranks has: tp 4.
void convert_for_other_topology(const std::filesystem::path& output);

/// Removes manifest, records and hashes: all traces of the conversion's own output. Manifests of
/// rank slices stay for topology, axes and offsets; hashes and sizes in them are computed again
/// from the present files, so that they prove nothing.
void forget_the_conversion(const std::filesystem::path& output);

}  // namespace ingot::testing
