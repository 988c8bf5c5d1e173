#pragma once

#include <cstdint>

#include <gtest/gtest.h>
#include <hwy/highway.h>
#include <hwy/targets.h>

namespace ingot::quantize {

/// Calls body() with dispatch restricted to each target that this processor and this build have,
/// and stops at the first failure.
template <typename Body>
void for_each_target(Body body) {
  const auto choose = [](std::int64_t targets) {
    hwy::SetSupportedTargetsForTest(targets);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  };
  for (const std::int64_t target : hwy::SupportedAndGeneratedTargets()) {
    choose(target);
    {
      SCOPED_TRACE(hwy::TargetName(target));
      body();
    }
    choose(0);
    if (::testing::Test::HasFailure()) return;
  }
}

}  // namespace ingot::quantize
