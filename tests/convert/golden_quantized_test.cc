#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/base/hash.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/convert/output_tensors.h"
#include "tests/support/temp_dir.h"

// The example quantized, against hashes from a program that shares no code with this one
// (tests/golden/PROVENANCE.md).

namespace ingot::convert {
namespace {

using formats::SchemeId;
using ingot::testing::Conversion;
using ingot::testing::TempDir;

std::string sha256(const std::string& bytes) {
  Sha256 hasher;
  hasher.update(std::as_bytes(std::span(bytes)));
  return hasher.finish_hex();
}

TEST(GoldenQuantized, Int8AndFp8RowsEqualIndependentResults) {
  const std::pair<SchemeId, const char*> rows[] = {
      {SchemeId::kInt8Channel, "int8.sha256.json"},
      {SchemeId::kFp8Channel, "fp8_channel.sha256.json"}};
  for (const auto& [scheme, file] : rows) {
    const TempDir directory;
    Conversion conversion(ingot::testing::tiny_v32(), directory / "out");
    conversion.recipe.to = scheme;
    conversion.recipe.choices.fp8_grid = quantize::Fp8Grid::kAmax;
    conversion.run();
    const auto golden = formats::read_json_file(
        std::filesystem::path(INGOT_SOURCE_DIR) / "tests/golden/tiny-v32" / file, 1 << 20);
    const auto output = ingot::testing::read_output(directory / "out");
    ASSERT_EQ(output.size(), golden.size()) << file;
    for (const auto& [name, facts] : golden.items()) {
      ASSERT_TRUE(output.contains(name)) << name;
      const auto& tensor = output.at(name);
      EXPECT_EQ(formats::dtype_name(tensor.dtype), facts.at("dtype").get<std::string>()) << name;
      EXPECT_EQ(tensor.shape, facts.at("shape").get<formats::Shape>()) << name;
      EXPECT_EQ(sha256(tensor.bytes), facts.at("sha256").get<std::string>()) << name;
    }
  }
}

}  // namespace
}  // namespace ingot::convert
