#include "verify/weights/step_grid.h"

#include <limits>

#include "formats/base/error.h"

namespace ingot::verify {
namespace {

using formats::CodeKind;
using formats::SchemeId;

constexpr float kLimit = 0.5001F;
constexpr float kSlack = 1 + 0x1p-12F;

constexpr StepGrid kE4m3{0x1p-6F, 0x1p-3F, kLimit, 448, kSlack};
/// All steps are 1; -128 is as far as 127 for what was cut off.
constexpr StepGrid kInt8{0x1p7F, 0x1p-7F, kLimit, 127, kSlack};
constexpr StepGrid kE2m1{1, 0x1p-1F, kLimit, 6, kSlack};
constexpr StepGrid kBf16{0x1p-126F, 0x1p-7F, kLimit, 0x1.FEp127F, 1};
constexpr StepGrid kF16{0x1p-14F, 0x1p-10F, kLimit, 65504, 1};
constexpr StepGrid kF32{0x1p-126F, 0x1p-23F, 0, std::numeric_limits<float>::infinity(), 1};

}  // namespace

const StepGrid& step_grid(SchemeId scheme) {
  switch (formats::scheme_facts(scheme).code) {
    case CodeKind::kE4m3:
      return kE4m3;
    case CodeKind::kInt8:
      return kInt8;
    case CodeKind::kE2m1:
      return kE2m1;
    case CodeKind::kPlain:
      break;
  }
  INGOT_CHECK(scheme != SchemeId::kRaw);
  if (scheme == SchemeId::kBf16) return kBf16;
  return scheme == SchemeId::kF16 ? kF16 : kF32;
}

}  // namespace ingot::verify
