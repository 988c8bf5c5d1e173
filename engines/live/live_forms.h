#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engines/row/engine.h"
#include "formats/container/dtype.h"
#include "formats/container/tensor.h"
#include "formats/storage/encoding.h"

// The bytes that parameters have when an engine has processed them for its kernels: as in its files
// (joined and cut), in another order or under other scales, or packed by a kernel. Sources: vLLM
// 0.33, model_executor/layers and its oracles; SGLang 0.5.23, layers/quantization.

namespace ingot::engines {

/// A form that follows from the bytes of the files.
enum class LiveForm : std::uint8_t {
  kAsStored,
  kTransposed,         ///< columns by rows
  kHalvesSwapped,      ///< up before gate, in each expert
  kRowsInterleaved,    ///< rows of gate and up in turn, in each expert
  kPowersOfTwo,        ///< FP8 codes encoded again under powers of two as scales; these scales
  kPackedPowers,       ///< exponents of kPowersOfTwo: a row for each row of codes, four in a word
  kRoundedPowers,      ///< kPowersOfTwo of values that are in BF16 before
  kPackedRounded,      ///< exponents of kRoundedPowers
  kDecoded,            ///< FP8 codes times scales, in BF16
  kDecodedPowers,      ///< decoded codes of kRoundedPowers
  kTiles,              ///< scales in tiles of 128 rows and 4 columns, padded by zeros
  kLargest,            ///< one number: the largest of the joined
  kLargestReciprocal,  ///< one number: 1 / the largest of the joined
  kLargestOfExperts,   ///< the largest of the joined, for each expert
  kOfRows,             ///< the scale of each row, in FP32
  kLargestOfRows,      ///< the largest of the joined, for each row
  /// FP8 codes with one scale for each of the joined, encoded again under the largest of these (of
  /// an expert's, for experts); of linear layers columns by rows.
  kOneScale,
  kOneScaleSwapped,  ///< kOneScale, up before gate, in each expert
  kTurnedByRows,     ///< columns by rows, where each row has a scale (kOfRows)
  kFirst,            ///< the first of the joined for all of them: a fault where they differ
};
inline constexpr std::size_t kLiveForms = 20;
std::string_view live_form_name(LiveForm form);

/// Generations of cards, by compute capability: 8.0 to 8.9, 9.0, 10.0.
enum class LiveCard : std::uint8_t { kAmpere, kHopper, kBlackwell };
inline constexpr std::size_t kLiveCards = 3;

/// A parameter as the rules see it.
struct LiveWeight {
  formats::SchemeId scheme{};
  bool is_of_experts = false;   ///< a stack of routed experts
  bool is_weight_only = false;  ///< activations that stay as they are
  std::string_view part;        ///< the last word of its name: `weight`, `w13_weight_scale`
};

/// The forms that a parameter may have.
struct LiveForms {
  std::vector<LiveForm> forms;  ///< forms that can be computed
  std::string kernel;           ///< kernel that may have packed it otherwise; empty: none does
  bool is_alike = false;        ///< kernels are chosen alike: if one of a kind has a form, all have
  bool is_rounding = false;  ///< the kernel is a way of rounding, one for all weights of a scheme
};
/// `card`: nullopt: any of them.
LiveForms live_forms(Engine engine, const LiveWeight& weight, std::optional<LiveCard> card);

/// A parameter in bytes, row-major.
struct LiveBytes {
  std::span<const std::byte> bytes;
  formats::DType dtype{};
  formats::Shape shape;
  std::vector<std::uint64_t> rows = {};  ///< rows of each of the joined, in their order
};

/// Gives `accept` the bytes of another form, as each arithmetic that an engine may have makes them,
/// until it returns true; else false. `other`: scales (F32) of codes, or the codes of scales, for
/// forms that need it; null: none. A parameter that has no such form gives none.
bool in_form(LiveForm form, const LiveBytes& stored, const LiveBytes* other,
             const std::function<bool(std::span<const std::byte>)>& accept);

/// True if the joined do not share one scale (of experts: those of one); codes as they are in the
/// files are then wrong under the one scale that an engine keeps.
bool has_own_scales(const LiveBytes& codes, const LiveBytes& scale);

/// True if one name's part is the codes of weights, and the other's their scales.
bool are_codes_and_scales(std::string_view one, std::string_view other);
/// True if a part is scales, which engines hold in FP32 whatever the files have.
bool is_scale_in_f32(formats::SchemeId scheme, std::string_view part);

/// The bytes of another form with the dtype and the shape that SGLang gives them.
LiveBytes as_formed(LiveForm form, const LiveBytes& stored, std::span<const std::byte> bytes);

/// The name under which both sides are compared: modules have several names in an engine, and
/// engines several names for one module.
std::string compared_name(std::string_view name);

}  // namespace ingot::engines
