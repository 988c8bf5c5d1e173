#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  kLargestReciprocal,  ///< one number: 1 / the largest of the joined
};
inline constexpr std::size_t kLiveForms = 12;
std::string_view live_form_name(LiveForm form);

/// Generations of cards, by compute capability: 8.0 to 8.9, 9.0, 10.0.
enum class LiveCard : std::uint8_t { kAmpere, kHopper, kBlackwell };
inline constexpr std::size_t kLiveCards = 3;

/// A parameter as the rules see it.
struct LiveWeight {
  formats::SchemeId scheme{};
  bool is_of_experts = false;  ///< a stack of routed experts
  std::string_view part;       ///< the last word of its name: `weight`, `w13_weight_scale`
};

/// The forms that a parameter may have.
struct LiveForms {
  std::vector<LiveForm> forms;  ///< forms that can be computed
  std::string kernel;           ///< kernel that may have packed it otherwise; empty: none does
  bool is_alike = false;        ///< kernels are chosen alike: if one of a kind has a form, all have
};
/// `card`: nullopt: any of them.
LiveForms live_forms(Engine engine, const LiveWeight& weight, std::optional<LiveCard> card);

/// A parameter in bytes, row-major.
struct LiveBytes {
  std::span<const std::byte> bytes;
  formats::DType dtype{};
  formats::Shape shape;
};

/// The bytes of another form. `other`: scales (F32) of FP8 codes in blocks, or the codes of scales,
/// for forms that need it. nullopt: the parameter has no such form.
std::optional<std::vector<std::byte>> in_form(LiveForm form, const LiveBytes& stored,
                                              const LiveBytes* other);

/// The name under which both sides are compared: modules have several names in an engine, and
/// engines several names for one module.
std::string compared_name(std::string_view name);

}  // namespace ingot::engines
