#include "engines/live/live_forms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/container/bfloat16.h"
#include "formats/container/float16.h"
#include "formats/container/float8.h"

namespace ingot::engines {

using formats::SchemeId;

namespace {

constexpr std::array<std::string_view, kLiveForms> kFormNames = {
    "as stored",
    "transposed",
    "gate and up exchanged",
    "gate and up in turn",
    "scales made powers of two",
    "scales made powers of two, packed",
    "scales made powers of two in BF16",
    "scales made powers of two in BF16, packed",
    "decoded to BF16",
    "decoded to BF16 under scales made powers of two",
    "scales in tiles",
    "the largest",
    "1 / the largest",
    "the largest of each expert",
    "the scale of each row",
    "the largest for each row",
    "under the largest scale",
    "under the largest scale, gate and up exchanged",
    "transposed, a scale for each row",
    "the first scale for all of the joined, which have others",
};

enum class Where : std::uint8_t { kLinears, kExperts, kDownOfExperts, kBoth };
enum class Piece : std::uint8_t { kWeight, kScale, kGlobal, kInput, kOther, kAny };

// One generation of cards: a bit for each form, who packs, and whether all of a kind are alike.
struct Cell {
  std::uint32_t forms = 0;
  std::string_view kernel = "";
  bool is_alike = false;
};
template <typename... Forms>
constexpr std::uint32_t bits(Forms... forms) {
  return ((1U << static_cast<unsigned>(forms)) | ...);
}
constexpr Cell kSame{bits(LiveForm::kAsStored)}, kTurned{bits(LiveForm::kTransposed)};
constexpr Cell kOneNumber{bits(LiveForm::kLargest)};
constexpr Cell kMarlin{0, "Marlin"}, kMarlinOrHumming{0, "Marlin or Humming"};
// A cell of other cards, for one on which Marlin may have taken the weight.
constexpr Cell unless_marlin(Cell cell) {
  return {cell.forms, "Marlin", cell.is_alike};
}

struct FormRow {
  std::optional<Engine> engine;    // nullopt: each
  std::optional<SchemeId> scheme;  // nullopt: any plain one
  Where where;
  Piece piece;
  std::array<Cell, kLiveCards> cards;
};

constexpr std::string_view kDeepGemm = "DeepGEMM (VLLM_USE_DEEP_GEMM=0 keeps the bytes)";
constexpr std::string_view kTrtllm = "FlashInfer TRT-LLM";
constexpr std::string_view kOfMxfp8 = "FlashInfer TRT-LLM, Marlin or another kernel";
constexpr std::string_view kWithOffsets = "a kernel with zero points of activations";
constexpr std::string_view kOfNvfp4Experts = "FlashInfer TRT-LLM or CUTLASS";
constexpr std::string_view kOtherBackend = "another backend than Triton";
// Engines round to FP16 between the two scales, and GPUs the scale too.
constexpr std::string_view kOtherRounding =
    "a kernel that rounds otherwise under the largest scale";
constexpr Cell kOneOrTurned{bits(LiveForm::kTransposed, LiveForm::kOneScale), kOtherRounding, true};
constexpr Cell kOneOrSame{
    bits(LiveForm::kAsStored, LiveForm::kOneScale, LiveForm::kOneScaleSwapped), kOtherRounding,
    true};
constexpr Cell kOneOrPacked{kOneOrSame.forms, kTrtllm, true};
constexpr Cell kOneOrByRows{kOneOrTurned.forms | bits(LiveForm::kTurnedByRows), kOtherRounding,
                            true};
constexpr Cell kLargestOrRows{
    bits(LiveForm::kLargest, LiveForm::kOfRows, LiveForm::kLargestOfRows, LiveForm::kFirst)};
constexpr Cell kOfExperts{bits(LiveForm::kAsStored, LiveForm::kLargestOfExperts)};

// The first row that fits decides. DeepGEMM leaves the layout of scales on Hopper, and packs their
// exponents on Blackwell (csrc/apis/layout.hpp of DeepGEMM 2.8).
constexpr FormRow kFormRows[] = {
    // One scale for each of the joined: CUTLASS and experts want one for all. FlashInfer swaps
    // halves.
    {std::nullopt,
     SchemeId::kFp8Tensor,
     Where::kDownOfExperts,
     Piece::kWeight,
     {unless_marlin(kSame), kSame, Cell{kSame.forms, kTrtllm, true}}},
    {std::nullopt,
     SchemeId::kFp8Tensor,
     Where::kExperts,
     Piece::kWeight,
     {unless_marlin(kOneOrSame), kOneOrSame, kOneOrPacked}},
    {std::nullopt,
     SchemeId::kFp8Tensor,
     Where::kExperts,
     Piece::kScale,
     {unless_marlin(kOfExperts), kOfExperts, Cell{kOfExperts.forms, kTrtllm, true}}},
    {std::nullopt,
     SchemeId::kInt8Channel,
     Where::kLinears,
     Piece::kWeight,
     {kTurned, kTurned, kTurned}},
    // BF16 experts: Triton leaves them, FlashInfer permutes blocks, or swaps halves.
    {Engine::kVllm,
     SchemeId::kBf16,
     Where::kExperts,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), kOtherBackend, true}, kSame,
      Cell{bits(LiveForm::kAsStored, LiveForm::kHalvesSwapped), kTrtllm, true}}},
    // Experts that are dealt out on Hopper: FlashInfer swaps halves, DeepGEMM encodes again.
    {Engine::kVllm,
     SchemeId::kFp8Block,
     Where::kExperts,
     Piece::kWeight,
     {kMarlin, Cell{bits(LiveForm::kAsStored, LiveForm::kHalvesSwapped, LiveForm::kPowersOfTwo)},
      Cell{bits(LiveForm::kAsStored, LiveForm::kPowersOfTwo), kTrtllm, true}}},
    {Engine::kVllm,
     SchemeId::kFp8Block,
     Where::kExperts,
     Piece::kAny,
     {kMarlin, Cell{bits(LiveForm::kAsStored, LiveForm::kHalvesSwapped, LiveForm::kPowersOfTwo)},
      Cell{bits(LiveForm::kAsStored, LiveForm::kPackedPowers), kTrtllm, true}}},
    {Engine::kVllm,
     SchemeId::kFp8Block,
     Where::kLinears,
     Piece::kWeight,
     {kMarlin, Cell{bits(LiveForm::kAsStored, LiveForm::kPowersOfTwo), kDeepGemm, true},
      Cell{bits(LiveForm::kAsStored, LiveForm::kPowersOfTwo), kDeepGemm, true}}},
    {Engine::kVllm,
     SchemeId::kFp8Block,
     Where::kLinears,
     Piece::kAny,
     {kMarlin, Cell{bits(LiveForm::kAsStored, LiveForm::kPowersOfTwo), kDeepGemm, true},
      Cell{bits(LiveForm::kAsStored, LiveForm::kPackedPowers), kDeepGemm, true}}},
    {Engine::kVllm,
     SchemeId::kFp8Tensor,
     Where::kLinears,
     Piece::kWeight,
     {unless_marlin(kOneOrTurned), kOneOrTurned, kOneOrTurned}},
    {Engine::kVllm,
     SchemeId::kInt8Channel,
     Where::kBoth,
     Piece::kInput,
     {Cell{bits(LiveForm::kLargest), kWithOffsets}, Cell{bits(LiveForm::kLargest), kWithOffsets},
      Cell{bits(LiveForm::kLargest), kWithOffsets}}},
    {Engine::kVllm,
     SchemeId::kFp8Channel,
     Where::kExperts,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), "Marlin"}, kSame,
      Cell{bits(LiveForm::kAsStored), kOtherBackend, true}}},
    {Engine::kVllm,
     SchemeId::kFp8Channel,
     Where::kLinears,
     Piece::kWeight,
     {Cell{bits(LiveForm::kTransposed), "Marlin"}, kTurned, kTurned}},
    {Engine::kVllm,
     SchemeId::kFp8Channel,
     Where::kLinears,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), "Marlin"}, kSame, kSame}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kWeight,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kAsStored), "a kernel that pads"}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kGlobal,
     {kMarlin, kMarlin,
      Cell{bits(LiveForm::kLargest, LiveForm::kLargestReciprocal), "another kernel", true}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kInput,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kLargest), "another kernel", true}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kScale,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kTiles), "another kernel", true}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kExperts,
     Piece::kWeight,
     {kMarlin, kMarlin,
      Cell{bits(LiveForm::kAsStored, LiveForm::kHalvesSwapped), kOfNvfp4Experts, true}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kExperts,
     Piece::kScale,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kTiles), kOfNvfp4Experts, true}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kBoth,
     Piece::kAny,
     {kMarlin, kMarlin, Cell{0, kOfNvfp4Experts}}},
    // FlashInfer's kernels: CuTe DSL with the inputs first, CUTLASS as stored.
    {Engine::kVllm,
     SchemeId::kMxfp8,
     Where::kLinears,
     Piece::kWeight,
     {kMarlinOrHumming, kMarlinOrHumming,
      Cell{bits(LiveForm::kAsStored, LiveForm::kTransposed), kOfMxfp8, true}}},
    {Engine::kVllm,
     SchemeId::kMxfp8,
     Where::kLinears,
     Piece::kScale,
     {kMarlinOrHumming, kMarlinOrHumming,
      Cell{bits(LiveForm::kAsStored, LiveForm::kTiles), kOfMxfp8, true}}},
    {Engine::kVllm,
     SchemeId::kMxfp8,
     Where::kExperts,
     Piece::kAny,
     {kMarlinOrHumming, kMarlinOrHumming, Cell{0, kOfMxfp8}}},
    {Engine::kVllm,
     SchemeId::kMxfp4,
     Where::kBoth,
     Piece::kAny,
     {kMarlinOrHumming, kMarlinOrHumming, Cell{0, "FlashInfer TRT-LLM, Marlin or Humming"}}},
    {Engine::kVllm,
     SchemeId::kInt4Group,
     Where::kBoth,
     Piece::kAny,
     {Cell{0, "Marlin"}, Cell{0, "Machete, Marlin or Humming"},
      Cell{0, "Machete, Marlin, Humming or TRT-LLM"}}},

    {Engine::kSglang,
     SchemeId::kBf16,
     Where::kExperts,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored, LiveForm::kRowsInterleaved)},
      Cell{bits(LiveForm::kAsStored, LiveForm::kRowsInterleaved)},
      Cell{bits(LiveForm::kAsStored, LiveForm::kRowsInterleaved), kTrtllm, true}}},
    {Engine::kSglang,
     SchemeId::kFp8Block,
     Where::kBoth,
     Piece::kWeight,
     {Cell{bits(LiveForm::kDecoded, LiveForm::kAsStored), "Marlin"},
      Cell{bits(LiveForm::kDecoded, LiveForm::kAsStored)},
      Cell{bits(LiveForm::kDecoded, LiveForm::kDecodedPowers, LiveForm::kAsStored,
                LiveForm::kRoundedPowers),
           "DeepGEMM", true}}},
    {Engine::kSglang,
     SchemeId::kFp8Block,
     Where::kBoth,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), "Marlin"}, kSame,
      Cell{bits(LiveForm::kAsStored, LiveForm::kPackedRounded), "DeepGEMM", true}}},
    {Engine::kSglang,
     SchemeId::kFp8Channel,
     Where::kLinears,
     Piece::kWeight,
     {unless_marlin(kTurned), kTurned, kTurned}},
    {Engine::kSglang,
     SchemeId::kFp8Channel,
     Where::kBoth,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), "Marlin"}, kSame, kSame}},
    {Engine::kSglang, SchemeId::kInt8Block, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
    // Linear layers of dialect deepseek keep their codes, with a scale for each row; else as vLLM.
    {Engine::kSglang,
     SchemeId::kFp8Tensor,
     Where::kLinears,
     Piece::kWeight,
     {unless_marlin(kOneOrByRows), kOneOrByRows, kOneOrByRows}},
    {Engine::kSglang,
     SchemeId::kFp8Tensor,
     Where::kLinears,
     Piece::kScale,
     {unless_marlin(kLargestOrRows), kLargestOrRows, kLargestOrRows}},
    {Engine::kSglang,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kWeight,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kAsStored), kTrtllm}}},
    {Engine::kSglang,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kScale,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kTiles), kTrtllm, true}}},
    {Engine::kSglang,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kGlobal,
     {kMarlin, kMarlin, kOneNumber}},
    {Engine::kSglang,
     SchemeId::kNvfp4,
     Where::kBoth,
     Piece::kAny,
     {kMarlin, kMarlin, Cell{0, kOfNvfp4Experts}}},
    {Engine::kSglang, SchemeId::kInt4Group, Where::kBoth, Piece::kAny, {kMarlin, kMarlin, kMarlin}},
    {std::nullopt,
     SchemeId::kFp8Tensor,
     Where::kBoth,
     Piece::kAny,
     {unless_marlin(kOneNumber), kOneNumber, kOneNumber}},
    {std::nullopt, SchemeId::kInt8Channel, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
    {std::nullopt, std::nullopt, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
};

Piece piece_of(std::string_view part) {
  if (part.ends_with("global_scale") || part.ends_with("weight_scale_2")) return Piece::kGlobal;
  if (part.ends_with("input_scale")) return Piece::kInput;
  if (part.ends_with("scale") || part.ends_with("scale_inv")) return Piece::kScale;
  if (part.ends_with("weight") || part.ends_with("weight_packed")) return Piece::kWeight;
  return Piece::kOther;
}

bool is_plain(SchemeId scheme) {
  return !formats::scheme_facts(scheme).quantized;
}

bool is_where(Where where, const LiveWeight& weight) {
  switch (where) {
    case Where::kLinears:
      return !weight.is_of_experts;
    case Where::kDownOfExperts:
      return weight.is_of_experts && weight.part.starts_with("w2_");
    default:
      return where == Where::kBoth || weight.is_of_experts;
  }
}

bool fits(const FormRow& row, Engine engine, const LiveWeight& weight) {
  return (!row.engine || row.engine == engine) &&
         (row.scheme ? row.scheme == weight.scheme : is_plain(weight.scheme)) &&
         is_where(row.where, weight) &&
         (row.piece == Piece::kAny || row.piece == piece_of(weight.part));
}

using ByteList = std::vector<std::byte>;
using Accept = std::function<bool(std::span<const std::byte>)>;

std::optional<ByteList> transposed(const LiveBytes& stored) {
  if (stored.shape.size() != 2) return std::nullopt;
  const std::size_t rows = stored.shape[0], cols = stored.shape[1];
  const std::size_t size = formats::dtype_bits(stored.dtype) / 8;
  if (size == 0) return std::nullopt;
  ByteList out(stored.bytes.size());
  for (std::size_t r = 0; r < rows; ++r) {
    for (std::size_t c = 0; c < cols; ++c)
      std::memcpy(&out[(c * rows + r) * size], &stored.bytes[(r * cols + c) * size], size);
  }
  return out;
}

// Rows of gate and up of each expert in another order: `place(row, n)` of n rows.
template <typename Place>
std::optional<ByteList> rows_placed(const LiveBytes& stored, const Place& place) {
  if (stored.shape.size() != 3 || stored.shape[1] % 2 != 0) return std::nullopt;
  const std::size_t experts = stored.shape[0], rows = stored.shape[1];
  if (experts == 0 || rows == 0) return std::nullopt;
  const std::size_t row_bytes = stored.bytes.size() / experts / rows;
  ByteList out(stored.bytes.size());
  for (std::size_t e = 0; e < experts; ++e) {
    for (std::size_t r = 0; r < rows; ++r) {
      std::memcpy(&out[(e * rows + place(r, rows)) * row_bytes],
                  &stored.bytes[(e * rows + r) * row_bytes], row_bytes);
    }
  }
  return out;
}

std::optional<ByteList> halves_swapped(const LiveBytes& stored) {
  return rows_placed(stored, [](std::size_t r, std::size_t n) { return (r + n / 2) % n; });
}

// FP8 codes with a scale for each block.
class Blocks {
 public:
  static std::optional<Blocks> of(const LiveBytes& codes, const LiveBytes* scale) {
    if (scale == nullptr || codes.dtype != formats::DType::kF8E4M3 ||
        scale->dtype != formats::DType::kF32 || codes.shape.size() < 2 ||
        codes.shape.size() != scale->shape.size())
      return std::nullopt;
    Blocks blocks{codes, *scale};
    const std::size_t n = codes.shape.size();
    blocks.rows_ = codes.shape[n - 2];
    blocks.cols_ = codes.shape[n - 1];
    blocks.scale_rows_ = scale->shape[n - 2];
    blocks.scale_cols_ = scale->shape[n - 1];
    if (blocks.scale_rows_ == 0 || blocks.scale_cols_ == 0) return std::nullopt;
    blocks.matrices_ = codes.bytes.size() / std::max<std::size_t>(1, blocks.rows_ * blocks.cols_);
    // Square blocks, the last of which may be cut.
    for (const std::size_t side :
         {kUsualSide, (blocks.cols_ + blocks.scale_cols_ - 1) / blocks.scale_cols_}) {
      blocks.side_ = side;
      const auto fits = [&](std::size_t n_values, std::size_t n_scales) {
        return (n_values + side - 1) / side == n_scales;
      };
      if (fits(blocks.rows_, blocks.scale_rows_) && fits(blocks.cols_, blocks.scale_cols_))
        return blocks;
    }
    return std::nullopt;
  }

  // Calls visit(index of a code, its decoded value, its scale), block by block; `block` before
  // each.
  template <typename Block, typename Visit>
  void for_each(const Block& block, const Visit& visit) const {
    for (std::size_t m = 0; m < matrices_; ++m) {
      for (std::size_t br = 0; br < scale_rows_; ++br) {
        for (std::size_t bc = 0; bc < scale_cols_; ++bc) {
          float scale = 0;
          std::memcpy(&scale,
                      &scale_.bytes[((m * scale_rows_ + br) * scale_cols_ + bc) * sizeof scale],
                      sizeof scale);
          const auto each = [&](const auto& see) {
            for (std::size_t r = br * side_; r < std::min(rows_, (br + 1) * side_); ++r) {
              for (std::size_t c = bc * side_; c < std::min(cols_, (bc + 1) * side_); ++c) {
                const std::size_t i = (m * rows_ + r) * cols_ + c;
                see(i, formats::kE4m3Values[std::to_integer<std::size_t>(codes_.bytes[i])] * scale);
              }
            }
          };
          const auto about = block(each);
          each([&](std::size_t i, float value) { visit(i, value, about); });
        }
      }
    }
  }
  [[nodiscard]] std::size_t size() const { return codes_.bytes.size(); }
  // The exponents of scales, a row for each row of codes, in whole words of four.
  [[nodiscard]] ByteList packed_exponents(std::span<const float> scales) const {
    const std::size_t width = (scale_cols_ + 3) / 4 * 4;
    ByteList out(matrices_ * rows_ * width);
    for (std::size_t row = 0; row < matrices_ * rows_; ++row) {
      const std::size_t of = row / rows_ * scale_rows_ + row % rows_ / side_;
      for (std::size_t c = 0; c < scale_cols_; ++c) {
        const auto word = std::bit_cast<std::uint32_t>(scales[of * scale_cols_ + c]);
        out[row * width + c] = static_cast<std::byte>(word >> 23);
      }
    }
    return out;
  }

 private:
  Blocks(const LiveBytes& codes, const LiveBytes& scale) : codes_(codes), scale_(scale) {}
  static constexpr std::size_t kUsualSide = 128;
  LiveBytes codes_, scale_;
  std::size_t matrices_ = 0, rows_ = 0, cols_ = 0, scale_rows_ = 0, scale_cols_ = 0, side_ = 0;
};

// The scale of a block by DeepGEMM: the power of two at or above its largest magnitude / 448.
// vLLM asks the logarithm in FP32, which is a whole number for what is just above a power of two.
float power_of_two_scale(float amax, bool by_logarithm) {
  constexpr float kLeast = 1e-4F, kLargest = 448.0F;
  const float scale = std::max(amax, kLeast) / kLargest;
  if (!std::isfinite(scale)) return scale;
  if (by_logarithm) {
    const auto logarithm = static_cast<float>(std::log2(static_cast<double>(scale)));
    return std::ldexp(1.0F, static_cast<int>(std::ceil(logarithm)));
  }
  int exponent = 0;
  const float mantissa = std::frexp(scale, &exponent);
  return std::ldexp(1.0F, mantissa == 0.5F ? exponent - 1 : exponent);
}

void put_bf16(ByteList& out, std::size_t i, float value) {
  const std::uint16_t word = formats::bf16_from_float(value);
  std::memcpy(&out[i * sizeof word], &word, sizeof word);
}

ByteList decoded(const Blocks& blocks) {
  ByteList out(blocks.size() * 2);
  blocks.for_each([](const auto&) { return 0; },
                  [&](std::size_t i, float value, int) { put_bf16(out, i, value); });
  return out;
}

// Blocks under scales that are powers of two.
struct Powers {
  std::vector<float> scales;  // scales in the order of the old ones
  ByteList codes, decoded;    // decoded: in BF16
};

// `is_rounded`: values are in BF16 before they are encoded again.
Powers powers_of_two(const Blocks& blocks, bool is_rounded) {
  Powers powers{
      .scales = {}, .codes = ByteList(blocks.size()), .decoded = ByteList(blocks.size() * 2)};
  const auto value_of = [&](float value) {
    return is_rounded ? formats::float_from_bf16(formats::bf16_from_float(value)) : value;
  };
  const auto new_scale = [&](const auto& each) {
    float amax = 0;
    each([&](std::size_t, float value) { amax = std::max(amax, std::abs(value_of(value))); });
    return powers.scales.emplace_back(power_of_two_scale(amax, !is_rounded));
  };
  blocks.for_each(new_scale, [&](std::size_t i, float value, float by) {
    const std::uint8_t code = formats::e4m3_from_float(value_of(value) * (1.0F / by));
    powers.codes[i] = static_cast<std::byte>(code);
    put_bf16(powers.decoded, i, formats::kE4m3Values[code] * by);
  });
  return powers;
}

ByteList bytes_of(std::span<const float> numbers) {
  ByteList out(numbers.size_bytes());
  if (!numbers.empty()) std::memcpy(out.data(), numbers.data(), out.size());
  return out;
}

std::optional<ByteList> of_blocks(LiveForm form, const LiveBytes& stored, const LiveBytes* other) {
  using enum LiveForm;
  const bool is_scale = stored.dtype == formats::DType::kF32;
  if (other == nullptr) return std::nullopt;
  const auto blocks = is_scale ? Blocks::of(*other, &stored) : Blocks::of(stored, other);
  const bool is_packed = form == kPackedPowers || form == kPackedRounded;
  const bool is_decoded = form == kDecoded || form == kDecodedPowers;
  if (!blocks || (is_packed && !is_scale) || (is_decoded && is_scale)) return std::nullopt;
  if (form == kDecoded) return decoded(*blocks);
  Powers powers = powers_of_two(*blocks, form != kPowersOfTwo && form != kPackedPowers);
  if (is_packed) return blocks->packed_exponents(powers.scales);
  if (form == kDecodedPowers) return std::move(powers.decoded);
  if (!is_scale) return std::move(powers.codes);
  return bytes_of(powers.scales);
}

// Scales of 16 or 32 columns, as kernels for NVFP4 and MXFP8 read them: each matrix in tiles of 128
// rows and 4 columns, in each of which 4 rows that are 32 apart follow each other.
std::optional<ByteList> in_tiles(const LiveBytes& stored) {
  constexpr std::size_t kRows = 128, kCols = 4, kApart = 32;
  const std::size_t n = stored.shape.size();
  if (n < 2 || n > 3 || formats::dtype_bits(stored.dtype) != 8) return std::nullopt;
  const std::size_t rows = stored.shape[n - 2], cols = stored.shape[n - 1];
  if (rows == 0 || cols == 0) return std::nullopt;
  const std::size_t matrices = stored.bytes.size() / rows / cols;
  const std::size_t tile_rows = (rows + kRows - 1) / kRows, tile_cols = (cols + kCols - 1) / kCols;
  const std::size_t tiles = tile_rows * tile_cols;
  ByteList out(matrices * tiles * kRows * kCols);
  for (std::size_t row = 0; row < matrices * rows; ++row) {
    const std::size_t r = row % rows;
    const std::size_t place = (r % kApart * (kRows / kApart) + r % kRows / kApart) * kCols;
    for (std::size_t c = 0; c < cols; ++c) {
      const std::size_t tile = row / rows * tiles + r / kRows * tile_cols + c / kCols;
      out[tile * kRows * kCols + place + c % kCols] = stored.bytes[row * cols + c];
    }
  }
  return out;
}

std::optional<std::vector<float>> numbers_of(const LiveBytes& stored) {
  if (stored.dtype != formats::DType::kF32 || stored.bytes.size() < sizeof(float))
    return std::nullopt;
  std::vector<float> numbers(stored.bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), stored.bytes.data(), numbers.size() * sizeof(float));
  return numbers;
}

// The scale of each of the joined, or the largest of as many as share one: of an expert's, of all.
std::optional<std::vector<float>> joined_scales(const LiveBytes& stored, std::size_t experts,
                                                bool is_largest) {
  auto numbers = numbers_of(stored);
  if (!numbers || experts == 0 || numbers->size() % experts != 0) return std::nullopt;
  const std::size_t n = numbers->size() / experts;
  for (std::size_t at = 0; is_largest && at < numbers->size(); at += n) {
    const auto of_one = std::span(*numbers).subspan(at, n);
    std::ranges::fill(of_one, std::ranges::max(of_one));
  }
  return numbers;
}

std::optional<ByteList> largest(const LiveBytes& stored, bool is_reciprocal) {
  const auto scales = joined_scales(stored, 1, true);
  if (!scales) return std::nullopt;
  const float result = is_reciprocal ? 1.0F / scales->front() : scales->front();
  return bytes_of(std::span(&result, 1));
}

std::optional<ByteList> largest_of_experts(const LiveBytes& stored) {
  if (stored.shape.size() != 2 || stored.shape[1] == 0) return std::nullopt;
  const auto scales = joined_scales(stored, stored.shape[0], true);
  if (!scales) return std::nullopt;
  std::vector<float> out;
  for (std::size_t at = 0; at < scales->size(); at += stored.shape[1]) out.push_back((*scales)[at]);
  return bytes_of(out);
}

// A scale for each row of codes.
std::optional<ByteList> of_rows(const std::optional<std::vector<float>>& scales,
                                const LiveBytes* codes) {
  if (!scales || codes == nullptr || codes->rows.size() != scales->size()) return std::nullopt;
  std::vector<float> out;
  for (std::size_t i = 0; i < scales->size(); ++i)
    out.insert(out.end(), codes->rows[i], (*scales)[i]);
  return bytes_of(out);
}

bool is_first_for_all(const LiveBytes& stored, const LiveBytes* codes, const Accept& accept) {
  auto scales = numbers_of(stored);
  if (!scales || std::ranges::count(*scales, scales->front()) == std::ssize(*scales)) return false;
  const float first = scales->front();
  std::ranges::fill(*scales, first);
  const auto rows = of_rows(scales, codes);
  return accept(bytes_of(std::span(&first, 1))) || (rows && accept(*rows));
}

// How codes are decoded and encoded again: values in between are in FP16. GPUs cast the scale to
// FP16 before the product, and multiply by 1 / the new one (aten/native/cuda of PyTorch:
// opmath_symmetric_gpu_kernel_with_scalars; csrc of vLLM, quantization/w8a8/fp8;
// per_tensor_quant_fp8 of SGLang); CPUs keep the scale in FP32, and divide.
struct Recoding {
  bool has_half_scale = true, divides = false;
};
constexpr std::array kRecodings = {Recoding{true, false}, Recoding{false, true}};

std::array<std::byte, 256> recoded(float scale, float by, const Recoding& how) {
  const auto to_half = [](float value) {
    return formats::float_from_f16(formats::f16_from_float(value));
  };
  const float used = how.has_half_scale ? to_half(scale) : scale;
  std::array<std::byte, 256> codes{};
  for (std::size_t code = 0; code < codes.size(); ++code) {
    const float value = to_half(formats::kE4m3Values[code] * used);
    codes[code] = static_cast<std::byte>(
        formats::e4m3_from_float(how.divides ? value / by : value * (1.0F / by)));
  }
  return codes;
}

bool under_one_scale(const LiveBytes& codes, const LiveBytes* scale, bool is_swapped,
                     const Accept& accept) {
  const bool is_stack = codes.shape.size() == 3;
  if (scale == nullptr || codes.dtype != formats::DType::kF8E4M3 || codes.shape.size() < 2 ||
      (is_swapped && !is_stack))
    return false;
  const std::size_t experts = is_stack ? codes.shape[0] : 1, cols = codes.shape.back();
  const auto own = joined_scales(*scale, experts, false);
  const auto shared = joined_scales(*scale, experts, true);
  if (!own || !shared || own->size() != codes.rows.size()) return false;
  ByteList out(codes.bytes.size());
  for (const Recoding& how : kRecodings) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < own->size(); ++i) {
      const auto table = recoded((*own)[i], (*shared)[i], how);
      for (const std::size_t end = at + codes.rows[i] * cols; at < end; ++at)
        out[at] = table[std::to_integer<std::size_t>(codes.bytes[at])];
    }
    LiveBytes made{.bytes = out, .dtype = codes.dtype, .shape = codes.shape};
    const auto placed =
        is_stack ? (is_swapped ? halves_swapped(made) : std::nullopt) : transposed(made);
    if (accept(placed ? std::span<const std::byte>(*placed) : made.bytes)) return true;
  }
  return false;
}

// Names of one module, or of one parameter, and the name that is compared.
struct NameRow {
  std::string_view name, compared;
};
constexpr NameRow kNameRows[] = {
    {".experts._shared_experts._layer.", ".shared_experts."},
    {".experts.gate.", ".gate."},
    {".self_attn.mla_attn.", ".self_attn."},
    {".experts.routed_experts.", ".experts."},
    {".fused_qkv_a_proj_with_mqa.", ".fused_qkv_a_proj."},
    {"weight_packed", "weight"},
    {"weight_scale_2", "weight_global_scale"},
    {"input_scale", "input_global_scale"},
    {".base_layer.", "."},
};

}  // namespace

std::string_view live_form_name(LiveForm form) {
  return kFormNames[static_cast<std::size_t>(form)];
}

LiveForms live_forms(Engine engine, const LiveWeight& weight, std::optional<LiveCard> card) {
  const auto* const row = std::ranges::find_if(
      kFormRows, [&](const FormRow& each) { return fits(each, engine, weight); });
  if (row == std::end(kFormRows)) return {.forms = {}, .kernel = "a kernel that was not read"};
  LiveForms forms;
  unsigned of_cards = 0;
  for (std::size_t c = 0; c < kLiveCards; ++c) {
    if (card && static_cast<std::size_t>(*card) != c) continue;
    const Cell& cell = row->cards[c];
    of_cards |= cell.forms;
    if (forms.kernel.empty()) forms.kernel = cell.kernel;
    forms.is_alike = forms.is_alike || cell.is_alike;
  }
  forms.is_rounding = forms.kernel == kOtherRounding;
  // Kernels that leave activations as they are pack FP8 and INT8.
  if (weight.is_weight_only && !is_plain(weight.scheme) &&
      (forms.kernel.empty() || forms.is_rounding)) {
    forms.kernel = "Marlin or another kernel for weights only";
    forms.is_alike = forms.is_rounding = false;
  }
  for (std::size_t f = 0; f < kLiveForms; ++f) {
    if ((of_cards >> f & 1U) != 0) forms.forms.push_back(static_cast<LiveForm>(f));
  }
  return forms;
}

bool in_form(LiveForm form, const LiveBytes& stored, const LiveBytes* other, const Accept& accept) {
  using enum LiveForm;
  const auto made = [&]() -> std::optional<ByteList> {
    switch (form) {
      case kTransposed:
      case kTurnedByRows:
        return transposed(stored);
      case kHalvesSwapped:
        return halves_swapped(stored);
      case kRowsInterleaved:
        return rows_placed(stored, [](std::size_t r, std::size_t n) {
          return r < n / 2 ? 2 * r : 2 * (r - n / 2) + 1;
        });
      case kPowersOfTwo:
      case kPackedPowers:
      case kRoundedPowers:
      case kPackedRounded:
      case kDecoded:
      case kDecodedPowers:
        return of_blocks(form, stored, other);
      case kTiles:
        return in_tiles(stored);
      case kLargest:
      case kLargestReciprocal:
        return largest(stored, form == kLargestReciprocal);
      case kLargestOfExperts:
        return largest_of_experts(stored);
      case kOfRows:
      case kLargestOfRows:
        return of_rows(joined_scales(stored, 1, form == kLargestOfRows), other);
      default:
        return std::nullopt;
    }
  };
  if (form == kAsStored) return accept(stored.bytes);
  if (form == kFirst) return is_first_for_all(stored, other, accept);
  if (form == kOneScale || form == kOneScaleSwapped)
    return under_one_scale(stored, other, form == kOneScaleSwapped, accept);
  const auto bytes = made();
  return bytes && accept(*bytes);
}

bool has_own_scales(const LiveBytes& codes, const LiveBytes& scale) {
  const std::size_t experts = codes.shape.size() == 3 ? codes.shape[0] : 1;
  const auto own = joined_scales(scale, experts, false);
  return own && own != joined_scales(scale, experts, true);
}

bool are_codes_and_scales(std::string_view one, std::string_view other) {
  const Piece a = piece_of(one), b = piece_of(other);
  return (a == Piece::kWeight && b == Piece::kScale) || (a == Piece::kScale && b == Piece::kWeight);
}

bool is_scale_in_f32(SchemeId scheme, std::string_view part) {
  const Piece piece = piece_of(part);
  return (piece == Piece::kScale || piece == Piece::kInput) &&
         (scheme == SchemeId::kFp8Block || scheme == SchemeId::kFp8Channel ||
          scheme == SchemeId::kFp8Tensor || scheme == SchemeId::kInt8Channel);
}

LiveBytes as_formed(LiveForm form, const LiveBytes& stored, std::span<const std::byte> bytes) {
  using enum LiveForm;
  LiveBytes formed{.bytes = bytes, .dtype = stored.dtype, .shape = stored.shape};
  const std::size_t n = stored.shape.size(), numbers = bytes.size() / sizeof(float);
  switch (form) {
    case kTransposed:
    case kTurnedByRows:
    case kOneScale:
      if (n == 2) std::swap(formed.shape[0], formed.shape[1]);
      break;
    case kDecoded:
    case kDecodedPowers:
      formed.dtype = formats::DType::kBf16;
      break;
    case kPackedPowers:
    case kPackedRounded: {
      formed.dtype = formats::DType::kI32;
      std::size_t words = (formed.shape[n - 1] + 3) / 4;
      formed.shape[n - 1] = words;
      for (std::size_t i = 0; i + 2 < n; ++i) words *= formed.shape[i];
      formed.shape[n - 2] = numbers / std::max<std::size_t>(1, words);
      break;
    }
    case kTiles:
      formed.shape[n - 2] = (formed.shape[n - 2] + 127) / 128 * 128;
      formed.shape[n - 1] = (formed.shape[n - 1] + 3) / 4 * 4;
      break;
    case kLargest:
    case kLargestReciprocal:
      formed.shape = {};
      break;
    case kLargestOfExperts:
      formed.shape = {numbers};
      break;
    case kOfRows:
    case kLargestOfRows:
      formed.shape = {numbers, 1};
      break;
    default:
      break;
  }
  return formed;
}

std::string compared_name(std::string_view name) {
  std::string text(name);
  for (const NameRow& row : kNameRows) {
    const std::size_t at = text.find(row.name);
    // The parameter's own name is the end.
    const bool is_end = !row.name.ends_with('.');
    if (at == text.npos || (is_end && at + row.name.size() != text.size())) continue;
    text.replace(at, row.name.size(), row.compared);
  }
  return text;
}

}  // namespace ingot::engines
