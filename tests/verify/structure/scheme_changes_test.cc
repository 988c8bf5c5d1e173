#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"
#include "verify/structure/compared_checkpoint.h"

namespace ingot::verify {
namespace {

using namespace ::testing;
using namespace ingot::testing;

constexpr const char* kNorm = "model.layers.1.input_layernorm.weight";
constexpr const char* kOtherNorm = "model.layers.0.input_layernorm.weight";

std::vector<SchemeChange> changes(const TinyCheckpoint& source, const TinyCheckpoint& output) {
  const ingot::testing::TempDir directory;
  source.write(directory / "source");
  output.write(directory / "output");
  return scheme_changes(open_compared(directory / "source", {}).model,
                        open_compared(directory / "output", {}).model);
}

TEST(SchemeChanges, NameSchemesRolesAndBytesOfBothSides) {
  const TinyCheckpoint source = tiny_deepseek_v3();
  TinyCheckpoint output = source;
  TinyTensor& norm = tensor_of(output, kNorm);
  norm.dtype = "F32";
  const std::uint64_t n = norm.shape.at(0);
  const std::vector<SchemeChange> all = changes(source, output);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].from, "bf16");
  EXPECT_EQ(all[0].to, "bf16");
  EXPECT_EQ(all[0].source_bytes, all[0].output_bytes);
  EXPECT_EQ(all[0].tensors + 1, source.files.begin()->second.size());
  EXPECT_EQ(all[1], (SchemeChange{.from = "bf16",
                                  .to = "f32",
                                  .roles = {"input-norm"},
                                  .tensors = 1,
                                  .source_bytes = 2 * n,
                                  .output_bytes = 4 * n}));
}

TEST(SchemeChanges, LeaveOutWhatOneSideLacks) {
  const TinyCheckpoint source = tiny_deepseek_v3();
  TinyCheckpoint output = source;
  std::erase_if(output.files.begin()->second,
                [](const TinyTensor& tensor) { return tensor.name == kOtherNorm; });
  const std::vector<SchemeChange> all = changes(source, output);
  ASSERT_EQ(all.size(), 1U);
  EXPECT_EQ(all[0].tensors + 1, source.files.begin()->second.size());
}

}  // namespace
}  // namespace ingot::verify
