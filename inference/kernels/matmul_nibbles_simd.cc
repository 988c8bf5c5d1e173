// Few rows of x by weights of four bits, and their tables (row_dots-inl.h).

#include <cstddef>
#include <vector>

#include "inference/kernels/matmul_task.h"
#include "quantize/kernels/codes.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/matmul_nibbles_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "inference/kernels/row_dots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES

std::vector<float> table_of(const CodedMatrix& w, WeightRounding rounding) {
  std::vector<float> table;
#if HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX3
  if (formats::scheme_facts(w.scheme).code != formats::CodeKind::kE2m1 || !has_regular_groups(w))
    return table;
  table.resize(256 * 16);
  for (std::size_t code = 0; code < 256; ++code) {
    const float scale = ingot::inference::one_nan(w.scale_values[code]);
    if (rounding == WeightRounding::kBf16) {
      store_e2m1_values<true>(scale, table.data() + 16 * code);
    } else {
      store_e2m1_values<false>(scale, table.data() + 16 * code);
    }
  }
#else
  (void)w;
  (void)rounding;
#endif
  return table;
}

void run_nibbles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  with_nibble_decoder(task.w, task.rounding, [&](auto decoder) HWY_ATTR {
    dot_columns<decltype(decoder)>(task, begin, end);
  });
}

#else

std::vector<float> table_of(const CodedMatrix& /*w*/, WeightRounding /*rounding*/) {
  return {};
}

void run_nibbles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  scalar::run_matmul(task, begin, end);
}

#endif
// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace HWY_NAMESPACE
}  // namespace ingot::inference
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ingot::inference {
namespace {
HWY_EXPORT(table_of);
HWY_EXPORT(run_nibbles);
}  // namespace

std::vector<float> e2m1_table(const CodedMatrix& w, WeightRounding rounding) {
  return HWY_DYNAMIC_DISPATCH(table_of)(w, rounding);
}

void run_matmul_nibbles(const MatmulTask& task, std::size_t begin, std::size_t end) {
  HWY_DYNAMIC_DISPATCH(run_nibbles)(task, begin, end);
}

}  // namespace ingot::inference
#endif
