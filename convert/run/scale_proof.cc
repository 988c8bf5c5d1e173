#include "convert/run/scale_proof.h"

#include <bit>
#include <cmath>

#include "formats/base/checked.h"

namespace ingot::convert {

using formats::CodeKind;
using formats::Part;
using formats::ScaleReader;
using formats::SchemeId;

namespace {

// As FP32, half a megabyte.
constexpr std::uint64_t kScalesAtOnce = std::uint64_t{1} << 17;

// A finite magnitude as an integer times 2^unit.
struct Digits {
  std::uint32_t integer;
  int unit;
};
Digits digits_of(float value) {
  const std::uint32_t word = std::bit_cast<std::uint32_t>(value) & 0x7FFFFFFFU;
  const std::uint32_t exponent = std::max(word >> 23, 1U);
  return {.integer = word - ((exponent - 1) << 23), .unit = static_cast<int>(exponent) - 150};
}

// Products of any of one kind with any of the other. Powers of two add no bits.
Bounds operator*(const Bounds& a, const Bounds& b) {
  return {.bits = std::min(a.bits, b.bits) <= 1 ? std::max(a.bits, b.bits) : a.bits + b.bits,
          .unit = a.unit + b.unit,
          .largest = a.largest * b.largest};
}

// Codes as numbers, NaNs apart.
Bounds code_bounds(const formats::Encoding& encoding) {
  switch (formats::scheme_facts(encoding.scheme).code) {
    case CodeKind::kE4m3:
      return {.bits = 4, .unit = -9, .largest = 448};
    case CodeKind::kE2m1:
      return {.bits = 2, .unit = -1, .largest = 6};
    case CodeKind::kInt8:
      return {.bits = 7, .unit = 0, .largest = 128};
    case CodeKind::kInt4:
      if (encoding.stored.has(Part::kZeroPoint)) return {.bits = 4, .unit = 0, .largest = 15};
      return {.bits = 3, .unit = 0, .largest = 8};
    case CodeKind::kPlain:
      break;
  }
  return plain_bounds(encoding.scheme);
}

}  // namespace

Bounds plain_bounds(SchemeId plain) {
  switch (plain) {
    case SchemeId::kBf16:
      return {.bits = 8, .unit = -133, .largest = 0x1.FEp127};
    case SchemeId::kF16:
      return {.bits = 11, .unit = -24, .largest = 65504};
    default:
      return {.bits = 24, .unit = -149, .largest = std::numeric_limits<float>::max()};
  }
}

unsigned significant_bits(float value) {
  const std::uint32_t integer = digits_of(value).integer;
  if (integer == 0) return 0;
  return static_cast<unsigned>(std::bit_width(integer)) -
         static_cast<unsigned>(std::countr_zero(integer));
}

void Bounds::add(float number) {
  if (number == 0) return;
  const Digits digits = digits_of(number);
  bits = std::max(bits, significant_bits(number));
  unit = std::min(unit, digits.unit + std::countr_zero(digits.integer));
  largest = std::max(largest, std::fabs(double{number}));
}

bool Bounds::include(const Bounds& other) const {
  return other.bits <= bits && other.unit >= unit && other.largest <= largest;
}

ScaleProof::ScaleProof(const Plan& of, std::uint32_t at)
    : PlannedValues{.plan = of, .planned = of.tensors[at]},
      index(at),
      scales(of.source, tensor, scale_policy()),
      codes(code_bounds(tensor.encoding)) {}

bool ScaleProof::is_held(SchemeId to, const Bounds& under, double largest) const {
  const Bounds products = codes * under;
  // Beyond F32 the product itself is rounded.
  if (!scales.has_scales() || !plain_bounds(SchemeId::kF32).include(products)) return false;
  const formats::SchemeFacts& facts = formats::scheme_facts(to);
  if (!facts.quantized) return plain_bounds(to).include(products);
  const quantize::EncodeOptions& options = plan.target.encode;
  if (planned.scales != PlannedTensor::kNone || largest == 0 || largest > 0x1p100) return false;
  if (facts.code == CodeKind::kInt8) return products.largest <= std::ldexp(127, products.unit);
  if (to == SchemeId::kNvfp4) {
    // Codes are kept, under E4M3's powers of two: 2^8 for the largest scale, to 2^-9.
    return tensor.encoding.scheme == SchemeId::kMxfp4 && under.unit >= -100 &&
           largest / codes.largest <= std::ldexp(1, under.unit + 17);
  }
  if (facts.code != CodeKind::kE4m3 || facts.scale_dtype != formats::DType::kF32 ||
      options.fp8_grid != quantize::Fp8Grid::kUe8m0)
    return false;
  // The least power of two under which no value is above 448; that of a tensor has a floor.
  int power = 0;
  if (std::frexp(largest / 448, &power) == 0.5) --power;
  power = std::max(power, -126);
  const quantize::Scheme& scheme = *quantize::find_scheme(to);
  if (scheme.global != nullptr)
    power = std::max(power, std::ilogb(scheme.global(0, options, false)));
  return Bounds{.bits = 4, .unit = power - 9, .largest = std::ldexp(448, power)}.include(products);
}

bool ScaleProof::are_held(SchemeId to, std::uint64_t first_row, std::uint64_t n_rows,
                          std::optional<double> largest) const {
  const ScaleReader::Range range = scales.range_of(first_row, n_rows);
  if (range.n == 0) return false;
  const std::vector<float> read = scales.read(range);
  const auto bounds = [&](ScaleReader::Range rows, std::uint64_t first, std::uint64_t end) {
    Bounds under;
    for (std::uint64_t row = rows.first - range.first; row < rows.first - range.first + rows.n;
         ++row) {
      for (std::uint64_t col = first; col < end; ++col) under.add(read[row * scales.cols() + col]);
    }
    return under;
  };
  if (largest || !formats::scheme_facts(to).quantized)
    return is_held(to, bounds(range, 0, scales.cols()), largest.value_or(0));
  const auto [block_rows, block_cols] = planned.block;
  const std::uint64_t cols = tensor.shape.back(), step = tensor.encoding.block_cols;
  const bool is_ordered = !scales.group_order().empty();
  for (std::uint64_t row = first_row; row < first_row + n_rows; row += block_rows) {
    const auto rows = scales.range_of(row, std::min(block_rows, first_row + n_rows - row));
    for (std::uint64_t col = 0; col < cols; col += block_cols) {
      const std::uint64_t end = ceil_div(std::min(cols, col + block_cols), step);
      const Bounds under =
          is_ordered ? bounds(rows, 0, scales.cols()) : bounds(rows, col / step, end);
      if (!is_held(to, under, codes.largest * under.largest)) return false;
    }
  }
  return true;
}

Bounds ScaleProof::all_scales() const {
  Bounds all;
  all_rows([&](std::uint64_t row, std::uint64_t n) {
    for (const float scale : scales.read(scales.range_of(row, n))) all.add(scale);
    return true;
  });
  return all;
}

ScaleProof::Run ScaleProof::rows_at_once() const {
  const std::uint64_t per_matrix = tensor.shape[tensor.shape.size() - 2];
  const std::uint64_t unit = std::clamp<std::uint64_t>(planned.block[0], 1, per_matrix);
  const std::uint64_t fitting = std::max<std::uint64_t>(kScalesAtOnce / scales.cols(), 1) *
                                std::min(tensor.encoding.block_rows, per_matrix);
  return {.n_rows = *formats::element_count(tensor.shape) / tensor.shape.back(),
          .per_matrix = per_matrix,
          .step = std::max(round_down(fitting, unit), unit)};
}

}  // namespace ingot::convert
