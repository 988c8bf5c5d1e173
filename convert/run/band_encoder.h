#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "convert/plan/band.h"
#include "convert/plan/plan.h"
#include "convert/run/moments_factors.h"
#include "convert/run/value_changer.h"
#include "formats/base/error.h"
#include "formats/storage/block_scales.h"
#include "quantize/block_moments.h"
#include "quantize/error_feedback.h"
#include "quantize/quality.h"
#include "quantize/scheme.h"

namespace ingot::convert {

/// A value of the source that the output would not hold, where ExecuteOptions::lossless_only
/// demands it.
class ValueLost : public Error {
 public:
  using Error::Error;
};

/// A tensor of the plan, and what the recipe allows of its values.
struct PlannedValues {
  const Plan& plan;
  const PlannedTensor& planned;
  const formats::TensorSource& source;
  bool lossless_only = false;
  /// Codes that go under the global scale that the source has (PlannedTensor::may_keep_codes).
  bool keeps_global = false;
  const formats::LogicalTensor& tensor = plan.tensor_of(planned);

  [[nodiscard]] formats::ScalePolicy scale_policy() const;
  /// The values of a band as kernels take them; scales apart.
  [[nodiscard]] quantize::CodedMatrix rows_of(const BandPlan& bands, const Band& band,
                                              std::span<const std::byte> values) const;
  [[nodiscard]] bool allows_nan() const;
  [[nodiscard]] Error nan_code(std::uint64_t row, std::uint64_t col) const;
  /// With `lossless_only`: throws ValueLost for the first value that became another one. The views
  /// begin at this row and column of the flattened tensor.
  void require_held(std::uint64_t first_row, std::uint64_t first_col,
                    formats::MatrixView<const float> values,
                    formats::MatrixView<const float> became) const;
};

/// The scales and zero points that decode a band of the source.
struct BandScales {
  formats::ScaleReader::Range range;
  std::vector<float> scales;
  std::vector<std::uint8_t> zeros;

  BandScales(const formats::ScaleReader& reader, formats::ScaleReader::Range of)
      : range(of), scales(reader.read(of)), zeros(reader.read_zeros(of)) {}
  /// Puts them into `rows`, which must not outlive them and the reader.
  void undo(const formats::ScaleReader& reader, quantize::CodedMatrix& rows) const;
};

/// Rows and columns of a band that are decoded and encoded while in cache.
struct Tile {
  std::uint64_t row = 0, rows = 0;  ///< within the band
  std::uint64_t col = 0, cols = 0;

  [[nodiscard]] quantize::CodedMatrix of(const quantize::CodedMatrix& band) const {
    return band.part(row, rows, col, cols);
  }
};

/// The scale over all of a tensor, as it is stored.
float stored_global(const formats::ScaleReader& scales);

/// Tiles of the encoder, kept by a thread from tensor to tensor.
struct TileBuffers {
  std::vector<float> values, decoded;
  std::vector<float> before;  ///< values that change, as they were
};

/// The check that a scheme holds any value of a tensor: values below the scheme's range become
/// zero.
class HeldValues {
 public:
  /// Nothing that was seen is held yet. Few tensors are open behind their first value.
  [[nodiscard]] bool is_open() const { return !is_held_; }
  /// Looks at words of `width` bytes as they are written.
  void see_words(std::span<const std::byte> words, std::size_t width);
  /// Looks at values that codes decode to.
  void see_values(formats::MatrixView<const float> values);
  /// While is_open(): counts values of the source, all of which become zero unless one is held.
  void count(std::span<const float> values);
  /// Throws kUnsupported where all numbers of the tensor other than zero became zero, and no
  /// `allowed` pattern covers it.
  void require_some(const formats::LogicalTensor& tensor, formats::SchemeId to,
                    const std::vector<Pattern>& allowed) const;

 private:
  bool is_held_ = false;
  std::uint64_t lost_ = 0;
};

/// Decodes and encodes bands of one tensor, in memory: tile by tile in cache. Throws kBadScale and
/// kNonFinite for values that no allowance covers.
class BandEncoder {
 public:
  /// `amax`: of the fused set, or nullopt if there is none. All references must outlive the
  /// encoder.
  /// `lease`: factors that carry the errors of columns on; null: none are.
  BandEncoder(const PlannedValues& of, std::optional<float> amax, TileBuffers& tiles,
              MomentsFactors::Lease* lease = nullptr);

  [[nodiscard]] const BandPlan& bands() const { return bands_; }
  /// The fact about a band that a fused set needs before any is encoded: its largest magnitude, or
  /// the largest MXFP4 scale where codes are repacked. That of the tensor is the largest of its
  /// bands. Values that change are judged as they become.
  float largest(const Band& band, std::span<const std::byte> codes);

  /// Encodes a band. The error is taken from the codes as they are written.
  void encode(const Band& band, std::span<const std::byte> codes, std::span<std::byte> out);
  /// Scales of the band that was encoded last, row-major, as written; empty where one scale is over
  /// the whole tensor.
  [[nodiscard]] std::span<const std::byte> scales() const { return band_scales_; }
  /// Their zero points; empty where none are chosen.
  [[nodiscard]] std::span<const std::uint8_t> zeros() const { return band_zeros_; }
  /// The scale over all of the tensor; 1 without one.
  [[nodiscard]] const float& global() const { return global_; }
  /// Sums over all bands that were encoded.
  [[nodiscard]] const quantize::QualitySums& quality() const { return quality_; }
  [[nodiscard]] const HeldValues& held() const { return held_; }
  /// True if errors of columns were carried on in some matrix that was encoded.
  [[nodiscard]] bool carries_errors() const { return carries_errors_; }
  /// Sums of the change of its values over all bands that were encoded; nullopt: none change.
  [[nodiscard]] std::optional<quantize::ChangeSums> change() const {
    return changer_ ? std::optional(change_sums_) : std::nullopt;
  }

 private:
  [[nodiscard]] bool can_repack() const;
  template <typename Act>
  void for_each_tile(const Band& band, const Act& act) const;
  /// Reads what is known of the inputs of a matrix, where it is not at hand.
  void begin_matrix(std::uint64_t matrix);
  /// Prepares the change of a band of values.
  void begin_change(const quantize::CodedMatrix& source, const Band& band);
  /// Shows the changer values of a band, or of a whole matrix, as they are before they change.
  void see_band(const quantize::CodedMatrix& source, const Band& band);
  void see_matrix(std::uint64_t matrix);
  /// Decodes a tile, changed where it changes.
  void read_tile(const quantize::CodedMatrix& source, const Band& band, const Tile& tile);
  void decode_tile(const quantize::CodedMatrix& source, const Band& band, const Tile& tile);
  void require_finite_codes(const Band& band, const Tile& tile) const;
  [[nodiscard]] std::optional<std::uint64_t> first_nonfinite(const Tile& tile) const;
  /// The columns in the order of their groups, where the source's order stays; else none.
  [[nodiscard]] std::vector<std::uint32_t> columns_by_group() const;
  void replace_nonfinite(const Band& band, const Tile& tile);
  [[nodiscard]] std::vector<float> given_scales(const Band& band, const Tile& tile) const;
  [[nodiscard]] quantize::EncodeFaults encode_values(const quantize::EncodeInput& in,
                                                     const quantize::EncodeOutput& out) const;
  void encode_tile(const quantize::CodedMatrix& source, const Band& band, const Tile& tile);
  void measure_tile(const Tile& tile, const quantize::EncodeOutput& out);
  [[nodiscard]] std::uint64_t groups_across(std::uint64_t cols) const;
  // The values of a tile, as they were and as they became.
  [[nodiscard]] formats::MatrixView<float> values(const Tile& tile) const;
  [[nodiscard]] formats::MatrixView<float> decoded(const Tile& tile) const;

  const PlannedValues of_;
  const Plan& plan_;
  const PlannedTensor& planned_;
  const formats::LogicalTensor& tensor_;
  TileBuffers& tiles_;
  const quantize::Scheme& to_;
  const BandPlan bands_;
  const formats::ScaleReader scales_;
  const formats::SchemeFacts& facts_;  // of the target
  std::optional<formats::ScaleReader> release_;
  const quantize::EncodeOptions options_;
  bool repacks_ = false;
  MomentsFactors::Lease* lease_;
  std::optional<float> amax_;
  float global_ = 1;
  bool values_are_finite_ = false;  // of the band at hand, NaN codes apart
  bool nan_allowed_ = false, nonfinite_allowed_ = false, overflow_allowed_ = false;

  std::optional<std::uint64_t> matrix_;              // begun last
  const quantize::MomentsFactor* factor_ = nullptr;  // of its inputs; null without
  std::vector<float> importance_;                    // of its columns; empty without
  std::vector<quantize::MomentBlock> moments_;       // of its columns; empty without
  bool carries_errors_ = false;

  const std::vector<std::uint32_t> by_group_;  // columns in the order of groups, as tiles have them
  std::span<std::byte> codes_;                 // of the band at hand
  std::vector<std::byte> band_scales_;         // of the band at hand, row-major, as written
  std::vector<std::uint8_t> band_zeros_;
  std::vector<float> tile_scales_;  // effective
  std::vector<std::uint8_t> tile_zeros_;
  quantize::QualitySums quality_;
  HeldValues held_;
  std::optional<ValueChanger> changer_;
  quantize::ChangeSums change_sums_;
};

}  // namespace ingot::convert
