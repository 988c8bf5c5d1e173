// Few rows of x by plain weights, and the choice among the families (row_dots-inl.h).

#include <cstddef>

#include "inference/kernels/matmul_task.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "inference/kernels/matmul_simd.cc"
#include <hwy/foreach_target.h>
// After foreach_target.h.
#include <hwy/highway.h>

#include "inference/kernels/row_dots-inl.h"

HWY_BEFORE_NAMESPACE();
namespace ingot::inference {
namespace HWY_NAMESPACE {
#if INGOT_HAS_LANES

void run_plain(const MatmulTask& task, std::size_t begin, std::size_t end) {
  with_plain_decoder(task.w, task.rounding, [&](auto decoder) HWY_ATTR {
    dot_columns<decltype(decoder)>(task, begin, end);
  });
}

#else

void run_plain(const MatmulTask& task, std::size_t begin, std::size_t end) {
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
HWY_EXPORT(run_plain);
}  // namespace

void run_matmul(const MatmulTask& task, std::size_t begin, std::size_t end) {
  if (task.y.rows > kMostDirectRows) return run_matmul_tiles(task, begin, end);
  switch (decoder_family(task.w)) {
    case quantize::DecoderFamily::kPlain:
      return HWY_DYNAMIC_DISPATCH(run_plain)(task, begin, end);
    case quantize::DecoderFamily::kBytes:
      return run_matmul_bytes(task, begin, end);
    case quantize::DecoderFamily::kNibbles:
      return run_matmul_nibbles(task, begin, end);
  }
}

}  // namespace ingot::inference
#endif
