#include "engines/live/live_forms.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "formats/container/bfloat16.h"
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
    "1 / the largest",
};

enum class Where : std::uint8_t { kLinears, kExperts, kBoth };
enum class Piece : std::uint8_t { kWeight, kScale, kGlobal, kOther, kAny };

// One generation of cards: a bit for each form, who packs, and whether all of a kind are alike.
struct Cell {
  std::uint16_t forms = 0;
  std::string_view kernel = "";
  bool is_alike = false;
};
template <typename... Forms>
constexpr std::uint16_t bits(Forms... forms) {
  return static_cast<std::uint16_t>(((1U << static_cast<unsigned>(forms)) | ...));
}
constexpr Cell kSame{bits(LiveForm::kAsStored)}, kTurned{bits(LiveForm::kTransposed)};
// SGLang's rank files have linear layers with their inputs first already.
constexpr std::uint16_t kEitherWay = bits(LiveForm::kAsStored, LiveForm::kTransposed);
constexpr Cell kMarlin{0, "Marlin"};

struct FormRow {
  Engine engine;
  std::optional<SchemeId> scheme;  // nullopt: any plain one
  Where where;
  Piece piece;
  std::array<Cell, kLiveCards> cards;
};

constexpr std::string_view kDeepGemm = "DeepGEMM (VLLM_USE_DEEP_GEMM=0 keeps the bytes)";
constexpr std::string_view kTrtllm = "FlashInfer TRT-LLM";
constexpr std::string_view kOfNvfp4Experts = "FlashInfer TRT-LLM or CUTLASS";
constexpr std::string_view kOtherBackend = "another backend than Triton";

// The first row that fits decides. DeepGEMM leaves the layout of scales on Hopper, and packs their
// exponents on Blackwell (csrc/apis/layout.hpp of DeepGEMM 2.8).
constexpr FormRow kFormRows[] = {
    // BF16 experts: Triton leaves them, FlashInfer permutes blocks, or swaps halves.
    {Engine::kVllm,
     SchemeId::kBf16,
     Where::kExperts,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), kOtherBackend, true}, kSame,
      Cell{bits(LiveForm::kAsStored, LiveForm::kHalvesSwapped), kTrtllm, true}}},
    {Engine::kVllm, std::nullopt, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
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
    {Engine::kVllm, SchemeId::kInt8Channel, Where::kExperts, Piece::kAny, {kSame, kSame, kSame}},
    {Engine::kVllm,
     SchemeId::kInt8Channel,
     Where::kLinears,
     Piece::kWeight,
     {kTurned, kTurned, kTurned}},
    {Engine::kVllm, SchemeId::kInt8Channel, Where::kLinears, Piece::kAny, {kSame, kSame, kSame}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kWeight,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kAsStored), "a kernel that pads"}}},
    {Engine::kVllm,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kGlobal,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kLargestReciprocal), "another kernel", true}}},
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
    {Engine::kSglang, std::nullopt, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
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
     {Cell{kEitherWay, "Marlin"}, Cell{kEitherWay}, Cell{kEitherWay}}},
    {Engine::kSglang,
     SchemeId::kFp8Channel,
     Where::kBoth,
     Piece::kAny,
     {Cell{bits(LiveForm::kAsStored), "Marlin"}, kSame, kSame}},
    {Engine::kSglang,
     SchemeId::kInt8Channel,
     Where::kLinears,
     Piece::kWeight,
     {Cell{kEitherWay}, Cell{kEitherWay}, Cell{kEitherWay}}},
    {Engine::kSglang, SchemeId::kInt8Channel, Where::kBoth, Piece::kAny, {kSame, kSame, kSame}},
    {Engine::kSglang,
     SchemeId::kNvfp4,
     Where::kLinears,
     Piece::kWeight,
     {kMarlin, kMarlin, Cell{bits(LiveForm::kAsStored), kTrtllm}}},
};

Piece piece_of(std::string_view part) {
  if (part.ends_with("global_scale") || part.ends_with("weight_scale_2")) return Piece::kGlobal;
  if (part.ends_with("scale") || part.ends_with("scale_inv")) return Piece::kScale;
  if (part.ends_with("weight") || part.ends_with("weight_packed")) return Piece::kWeight;
  return Piece::kOther;
}

bool fits(const FormRow& row, Engine engine, const LiveWeight& weight) {
  const bool is_plain = !formats::scheme_facts(weight.scheme).quantized;
  return row.engine == engine && (row.scheme ? row.scheme == weight.scheme : is_plain) &&
         (row.where == Where::kBoth || (row.where == Where::kExperts) == weight.is_of_experts) &&
         (row.piece == Piece::kAny || row.piece == piece_of(weight.part));
}

using ByteList = std::vector<std::byte>;

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
  ByteList out(powers.scales.size() * sizeof(float));
  std::memcpy(out.data(), powers.scales.data(), out.size());
  return out;
}

// Scales of 16 columns, as kernels for NVFP4 read them: each matrix in tiles of 128 rows and 4
// columns, in each of which 4 rows that are 32 apart follow each other.
std::optional<ByteList> in_tiles(const LiveBytes& stored) {
  constexpr std::size_t kRows = 128, kCols = 4, kApart = 32;
  const std::size_t n = stored.shape.size();
  if (n < 2 || n > 3 || stored.dtype != formats::DType::kF8E4M3) return std::nullopt;
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

std::optional<ByteList> largest_reciprocal(const LiveBytes& stored) {
  if (stored.dtype != formats::DType::kF32 || stored.bytes.size() < sizeof(float))
    return std::nullopt;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::size_t at = 0; at + sizeof largest <= stored.bytes.size(); at += sizeof largest) {
    float value = 0;
    std::memcpy(&value, &stored.bytes[at], sizeof value);
    largest = std::max(largest, value);
  }
  const float result = 1.0F / largest;
  ByteList out(sizeof result);
  std::memcpy(out.data(), &result, sizeof result);
  return out;
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
  for (std::size_t f = 0; f < kLiveForms; ++f) {
    if ((of_cards >> f & 1U) != 0) forms.forms.push_back(static_cast<LiveForm>(f));
  }
  return forms;
}

std::optional<std::vector<std::byte>> in_form(LiveForm form, const LiveBytes& stored,
                                              const LiveBytes* other) {
  using enum LiveForm;
  switch (form) {
    case kAsStored:
      return ByteList(stored.bytes.begin(), stored.bytes.end());
    case kTransposed:
      return transposed(stored);
    case kHalvesSwapped:
      return rows_placed(stored, [](std::size_t r, std::size_t n) { return (r + n / 2) % n; });
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
    case kLargestReciprocal:
      return largest_reciprocal(stored);
  }
  return std::nullopt;
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
