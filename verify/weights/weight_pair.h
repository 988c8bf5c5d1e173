#pragma once

#include <cstddef>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "formats/storage/block_scales.h"
#include "formats/storage/tensor_source.h"
#include "quantize/scheme.h"
#include "verify/weights/element_sums.h"
#include "verify/weights/group_reach.h"
#include "verify/weights/weight_bands.h"
#include "verify/weights/weight_check.h"

namespace ingot::verify {

/// A thread's buffers for decoding.
struct WeightScratch {
  std::vector<std::byte> source_codes, output_codes;
  std::vector<float> source_values, output_values, meant_values;
};

/// Sums over a band.
struct BandSums {
  ElementSums sums;
  GroupReach reach;     ///< reach of groups that the band holds
  bool is_same = true;  ///< codes and scales are equal, of one coding on both sides
  /// True where codes are equal under another global scale, and block scales are the nearest to the
  /// old ones.
  bool is_rescaled = true;
  bool has_powers_of_two = true;  ///< all scales of the output are powers of two
  void add(const BandSums& next);
};

/// Another weight's scale, which codes may have been made under.
struct OtherScale {
  std::string name;  ///< name of the weight
  float value = 0;   ///< global scale of NVFP4, or the one scale of a tensor
};

/// One logical tensor of both checkpoints, which must outlive it. The shapes are equal. Safe from
/// many threads.
class WeightPair {
 public:
  /// `wanted` must outlive this too.
  WeightPair(const ComparedTensor& source, const ComparedTensor& output, double sample,
             const Wanted& wanted);

  [[nodiscard]] const WeightBands& bands() const { return bands_; }
  /// Weight bytes of both sides in so many elements.
  [[nodiscard]] std::uint64_t bytes_of(std::uint64_t elements) const;
  /// Memory for one band.
  [[nodiscard]] std::uint64_t scratch_bytes() const;
  [[nodiscard]] BandSums compare(const WeightBand& band, WeightScratch& scratch) const;
  [[nodiscard]] Relation relation(const BandSums& whole) const;
  /// The module into which loaders fuse this weight with others, which may share a scale; or empty.
  [[nodiscard]] std::string fused_module() const;
  /// The global scale of the output, or its only scale; nullopt if it has many and no global one.
  [[nodiscard]] std::optional<float> one_scale() const;
  /// True if all scales of the output are powers of two, none of which can be a little off.
  [[nodiscard]] bool has_powers_of_two() const;
  /// True if the largest value of the output is that of the source, up to `within` of it.
  [[nodiscard]] bool keeps_largest(double within) const;
  /// Why values are misrounded, by the first band that has some.
  [[nodiscard]] std::string cause(std::span<const OtherScale> others) const;
  /// The reach of groups that several bands hold, when all were compared.
  [[nodiscard]] GroupReach shared_reach() const { return codes_.finish(); }

 private:
  [[nodiscard]] const formats::ScaleReader& reader(bool of_output) const;
  /// Some rows of a band.
  struct Chunk {
    quantize::CodedMatrix source, output;
  };
  [[nodiscard]] EncodedBand scales_of(bool of_output, const WeightBand& band) const;
  void compare_raw(const Chunk& chunk, bool is_same, ElementSums& sums) const;
  [[nodiscard]] static bool zeros_agree(const EncodedBand& source, const EncodedBand& output);
  [[nodiscard]] bool is_rescaled(const EncodedBand& source, const EncodedBand& output) const;
  [[nodiscard]] bool scales_agree(const EncodedBand& source, const EncodedBand& output,
                                  const WeightBand& band) const;
  void compare_values(const Chunk& chunk, bool is_same, BandSums& found,
                      WeightScratch& scratch) const;

  [[nodiscard]] bool is_as_wanted(const BandSums& whole) const;

  ComparedTensor source_, output_;
  const Wanted& wanted_;
  bool is_raw_ = false;       ///< one side is raw: bytes are compared
  bool same_coding_ = false;  ///< scheme, groups and dtype
  /// --gptq: codes of the output make up for what others of their row lost.
  bool is_carrying_ = false;
  bool is_reach_judged_ = true;  ///< scales follow from the values
  WeightBands bands_;
  mutable GroupCodes codes_;
  mutable std::once_flag opened_;
  mutable std::optional<formats::ScaleReader> source_scales_, output_scales_;
};

/// Why values of the output are misrounded, where one cause explains them: with it taken into
/// account, at most a hundredth of them is left. In words for a report ("scales computed in BF16
/// arithmetic"); empty where none does. Looks at the rows of `band`. `others`: scales of the
/// weights that loaders fuse with this one.
std::string misrounding_cause(const ComparedTensor& source, const ComparedTensor& output,
                              const WeightBand& band, std::span<const OtherScale> others);

}  // namespace ingot::verify
