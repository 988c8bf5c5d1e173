#include "verify/weights/group_reach.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "formats/container/float8.h"
#include "quantize/kernels/codes.h"
#include "quantize/kernels/row_scan.h"

namespace ingot::verify {
namespace {

using formats::CodeKind;
using formats::SchemeId;

/// Groups of so many columns of one row lie in one tile.
constexpr std::uint64_t kFineCols = 128;
/// A decoded value over its scale may lie an FP32 rounding below its code.
constexpr float kReached = 1 - 0x1p-12F;

bool has_exponent_scales(SchemeId scheme) {
  return formats::scheme_facts(scheme).scale_dtype == formats::DType::kF8E8M0;
}

float magnitude_of(SchemeId scheme, float scale) {
  return formats::scheme_facts(scheme).has_signed_scales ? std::fabs(scale) : scale;
}

/// NVFP4's block scales have few codes near zero: below 16 of them a search may well choose a
/// coarse one. As a factor of the global scale.
constexpr float kFewCodes = 6 * 16 * 0x1p-9F;

float amax_of(std::span<const float> values) {
  return quantize::finite_amax(values.data(), values.size());
}

/// The range of values and 0. Zero points let codes reach far to one side; a code counts by how far
/// it is from the one at the other end.
float range_of(formats::MatrixView<const float> values) {
  float low = 0, high = 0;
  for (std::size_t r = 0; r < values.rows; ++r) {
    for (std::size_t c = 0; c < values.cols; ++c) {
      low = std::min(low, values.row(r)[c]);
      high = std::max(high, values.row(r)[c]);
    }
  }
  return high - low;
}

/// True if one of the E2M1 codes reaches the bound, 4 or 3, in magnitude. The codes count 0, 0.5,
/// 1, 1.5, 2, 3, 4, 6. `n`, the number of codes, is a multiple of 16, which take 8 bytes.
bool reach_bound(const std::byte* codes, std::size_t n, float bound) {
  std::uint64_t found = 0;
  for (std::size_t i = 0; i < n; i += 16) {
    std::uint64_t pairs = 0;
    std::memcpy(&pairs, codes + i / 2, sizeof pairs);
    const std::uint64_t next = bound == 4 ? pairs << 1 : pairs << 1 | pairs << 2;
    found |= pairs & next & 0x4444'4444'4444'4444U;
  }
  return found != 0;
}

/// Squared error of E2M1 codes under a scale.
double e2m1_error2(std::span<const float> values, float scale) {
  double error2 = 0;
  for (const float value : values) {
    const float magnitude = std::fabs(value);
    const float code = quantize::kE2m1Magnitudes[quantize::e2m1_from_magnitude(magnitude / scale)];
    const double error = static_cast<double>(magnitude) - static_cast<double>(code * scale);
    error2 += error * error;
  }
  return error2;
}

template <typename T>
void raise(std::atomic<T>& largest, T value) {
  T before = largest.load(std::memory_order_relaxed);
  while (before < value &&
         !largest.compare_exchange_weak(before, value, std::memory_order_relaxed)) {
  }
}

}  // namespace

float floor_scale(SchemeId scheme) {
  switch (formats::scheme_facts(scheme).code) {
    case CodeKind::kInt8:
      return 0x1p-23F;
    case CodeKind::kE4m3:
      return has_exponent_scales(scheme) ? 0x1p-126F : 0x1p-21F;
    default:
      return 0x1p-126F;
  }
}

double error2_at_floor(SchemeId scheme, const ElementSums& sums) {
  if (!(sums.source2 > 0)) return 0;
  const quantize::CodeFacts code = quantize::code_facts(formats::scheme_facts(scheme).code);
  const double half_step = static_cast<double>(code.step_factor) / 2 *
                           static_cast<double>(code.floor) *
                           static_cast<double>(floor_scale(scheme));
  const auto n = static_cast<double>(sums.elements - sums.exact);
  return n * half_step * half_step / sums.source2;
}

float least_reach(SchemeId scheme, float scale) {
  const CodeKind kind = formats::scheme_facts(scheme).code;
  if (!formats::is_quantized(scheme)) return 0;
  const quantize::CodeFacts code = quantize::code_facts(kind);
  if (code.is_even()) return code.largest - 1;
  if (has_exponent_scales(scheme)) return code.largest / 2;
  if (kind == CodeKind::kE2m1) return 4;
  return kind != CodeKind::kE4m3 || formats::is_e8m0_value(scale) ? code.largest / 2 : 240;
}

void GroupReach::add(const GroupReach& next) {
  groups += next.groups;
  coarse += next.coarse;
  least = std::min(least, next.least);
  scale = std::max(scale, next.scale);
  fills = fills || next.fills;
}

GroupCodes::GroupCodes(const formats::Encoding& encoding, const formats::Shape& shape,
                       bool is_sampled)
    : scheme_(encoding.scheme) {
  if (least_reach(scheme_, 1) == 0 || encoding.block_rows == 0 || shape.size() < 2) return;
  is_judged_ = !is_sampled || encoding.block_rows == 1;
  is_within_tiles_ = encoding.block_rows == 1 && encoding.block_cols <= kFineCols;
  if (!is_judged_ || is_within_tiles_) return;
  const auto n = formats::element_count(
      formats::block_scale_shape(shape, encoding.block_rows, encoding.block_cols));
  shared_ = static_cast<std::size_t>(n.value_or(0));
}

void GroupCodes::see(const ElementRun& tile, const std::optional<formats::GlobalScale>& global,
                     GroupReach& found) {
  // Groups are taken for runs of columns.
  if (!is_judged_ || tile.output.rows == 0 || tile.output.cols == 0 ||
      !tile.stored.group_order.empty())
    return;
  if (!is_within_tiles_) return see_shared(tile);
  float factor = 0;
  if (global) factor = global->divides ? 1 / global->value : global->value;
  see_within(tile, factor, found);
}

void GroupCodes::see_within(const ElementRun& tile, float global, GroupReach& found) const {
  const std::size_t group = static_cast<std::size_t>(tile.stored.block_cols);
  const std::size_t groups = (tile.output.cols + group - 1) / group;
  const quantize::CodedMatrix& stored = tile.stored;
  check_scales(stored);
  const float bound = least_reach(scheme_, 1), floor = floor_scale(scheme_);
  // Mostly the largest code is found without decoding.
  const bool codes_tell = formats::scheme_facts(scheme_).code == CodeKind::kE2m1 && group % 16 == 0;
  const std::size_t whole = tile.output.cols / group;
  std::vector<float> largest;
  if (!codes_tell) {
    largest.resize(tile.output.rows * groups);
    quantize::group_amax(tile.output, 1, group, largest);
  }
  for (std::size_t r = 0; r < tile.output.rows; ++r) {
    const float* scales = stored.scales.data() + stored.first_group(r) + stored.block_of_col(0);
    const std::byte* codes = stored.row(r);
    for (std::size_t g = 0; g < groups; ++g) {
      if (codes_tell) {  // most groups of a row end here
        const std::size_t first = g;
        while (g < whole && reach_bound(codes + g * group / 2, group, bound)) ++g;
        found.groups += g - first;
        if (g == groups) break;
      }
      const std::size_t n = std::min(group, tile.output.cols - g * group);
      const std::span source(tile.source.row(r) + g * group, n);
      const std::span output(tile.output.row(r) + g * group, n);
      const float scale = magnitude_of(scheme_, scales[g]);
      float code = (codes_tell ? amax_of(output) : largest[r * groups + g]) / scale;
      if (!stored.zeros.empty() && code < bound)
        code = range_of({.data = output.data(), .rows = 1, .cols = n, .stride = n}) / scale;
      if (!(code < bound * kReached) || !(scale > floor)) {
        ++found.groups;
        continue;
      }
      if (std::equal(source.begin(), source.end(), output.begin())) continue;
      ++found.groups;
      if (scheme_ == SchemeId::kNvfp4) {
        if (amax_of(source) <= kFewCodes * global) continue;
        // A search that tried more scales than ours may have found nothing better.
        if (code > 2.5F && e2m1_error2(source, scale / 2) >= e2m1_error2(source, scale)) continue;
      }
      ++found.coarse;
      found.least = std::min(found.least, static_cast<double>(code / bound));
    }
  }
}

bool GroupCodes::are_settled(std::size_t first, std::size_t n) const {
  for (std::size_t at = first; at < first + n; ++at) {
    if (is_rounded_[at].load(std::memory_order_relaxed) == 0 ||
        reach_[at].load(std::memory_order_relaxed) < kReached)
      return false;
  }
  return true;
}

void GroupCodes::see_shared(const ElementRun& tile) {
  // Not before: a checkpoint has many tensors, of which few are at work.
  std::call_once(begun_, [&] {
    reach_ = std::make_unique<std::atomic<float>[]>(shared_);
    is_rounded_ = std::make_unique<std::atomic<std::uint8_t>[]>(shared_);
  });
  const quantize::CodedMatrix& stored = tile.stored;
  check_scales(stored);
  const auto group =
      static_cast<std::size_t>(std::min<std::uint64_t>(stored.block_cols, tile.output.cols));
  const std::size_t first = stored.block_of_col(0);
  const std::size_t groups = stored.block_of_col(tile.output.cols - 1) - first + 1;
  std::vector<float> largest(groups);
  for (std::size_t r = 0, end = 0; r < tile.output.rows; r = end) {
    end = stored.panel_end(r);
    const auto rows_of = [&](const formats::MatrixView<const float>& view) {
      return formats::MatrixView<const float>{
          .data = view.row(r), .rows = end - r, .cols = view.cols, .stride = view.stride};
    };
    const float* scales = stored.scales.data() + stored.first_group(r);
    const std::size_t first_at =
        stored.first_scale_row * stored.scale_cols + stored.first_group(r) + first;
    if (are_settled(first_at, groups)) continue;
    const auto output = rows_of(tile.output), source = rows_of(tile.source);
    quantize::group_amax(output, output.rows, group, largest);
    for (std::size_t g = 0; g < groups; ++g) {
      const float scale = magnitude_of(scheme_, scales[first + g]);
      const std::size_t at = first_at + g;
      // Values that are no scales were reported; a scale at its floor tells nothing.
      const bool is_at_floor = !(scale > floor_scale(scheme_));
      if (!stored.zeros.empty()) {
        const std::size_t begin = g * group, n = std::min(group, output.cols - begin);
        largest[g] = range_of(
            {.data = output.data + begin, .rows = output.rows, .cols = n, .stride = output.stride});
      }
      raise(reach_[at], is_at_floor ? 1.0F : largest[g] / scale / least_reach(scheme_, scale));
      if (shared_ == 1) scale_.store(scale, std::memory_order_relaxed);
      if (is_rounded_[at].load(std::memory_order_relaxed) != 0) continue;
      const std::size_t begin = g * group, stop = std::min(begin + group, output.cols);
      for (std::size_t row = 0; row < output.rows; ++row) {
        if (std::equal(source.row(row) + begin, source.row(row) + stop, output.row(row) + begin))
          continue;
        is_rounded_[at].store(1, std::memory_order_relaxed);
        break;
      }
    }
  }
}

GroupReach GroupCodes::finish() {
  GroupReach found;
  if (reach_ == nullptr) return found;
  for (std::size_t i = 0; i < shared_; ++i) {
    if (is_rounded_[i].load() == 0) continue;
    ++found.groups;
    const float reach = reach_[i].load();
    if (reach >= kReached) continue;
    ++found.coarse;
    found.least = std::min(found.least, static_cast<double>(reach));
  }
  if (shared_ == 1) {
    found.scale = scale_.load();
    found.fills = reach_[0].load() >= kReached;
  }
  reach_.reset();
  is_rounded_.reset();
  return found;
}

}  // namespace ingot::verify
