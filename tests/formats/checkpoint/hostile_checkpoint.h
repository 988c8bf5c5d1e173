#pragma once

#include <initializer_list>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/checkpoint/checkpoint.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

// Small checkpoints with faults, for the tests of refusals.

namespace ingot::testing {

inline constexpr const char* kUpStem = "model.layers.0.mlp.up_proj";
inline constexpr const char* kScale = "model.layers.0.mlp.up_proj.weight_scale_inv";

/// Writes the checkpoint and expects that opening it fails, and that `check` finds the same fault.
inline void refuse(const TinyCheckpoint& tiny, ErrorCode code,
                   std::initializer_list<std::string> fragments) {
  TempDir dir;
  tiny.write(dir.path());
  expect_error(code, fragments, [&] { formats::Checkpoint::open(dir.path()); });
  ErrorList faults;
  formats::Checkpoint::open(dir.path(), {.faults = &faults});
  EXPECT_THAT(faults.errors(), ::testing::Contains(::testing::Property(&Error::code, code)));
}

/// The tiny model with one FP8 weight.
inline TinyCheckpoint tiny_fp8() {
  TinyCheckpoint tiny = tiny_deepseek_v3();
  make_fp8(tiny, kUpWeight, kScale);
  return tiny;
}

inline void remove_tensor(TinyCheckpoint& tiny, const std::string& name) {
  for (auto& [file, tensors] : tiny.files) {
    std::erase_if(tensors, [&](const TinyTensor& tensor) { return tensor.name == name; });
  }
}

}  // namespace ingot::testing
