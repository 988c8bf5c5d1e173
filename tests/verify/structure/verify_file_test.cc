#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/records/manifest.h"
#include "tests/convert/conversion.h"
#include "tests/support/temp_dir.h"
#include "tests/support/tiny_checkpoint.h"

// ingot.verify.json is ours, as the manifest is: of one output, and never carried on.

namespace ingot::verify {
namespace {

namespace fs = std::filesystem;

using ingot::testing::Conversion;
using ingot::testing::TempDir;
using ingot::testing::write_bytes;

TEST(VerifyFile, StaysBehindWhenItsCheckpointIsConvertedOn) {
  const TempDir directory;
  ingot::testing::copy_example(directory / "source");
  write_bytes(directory / "source" / std::string(formats::kVerifyName), "{}");
  Conversion conversion(directory / "source", directory / "output");
  conversion.run();
  EXPECT_FALSE(fs::exists(conversion.output / formats::kVerifyName));
  EXPECT_TRUE(fs::exists(conversion.output / "generation_config.json"));
}

TEST(VerifyFile, GoesWithTheConversionThatItWasOf) {
  const TempDir directory;
  Conversion conversion(ingot::testing::tiny_v32(), directory / "output");
  conversion.run();
  write_bytes(conversion.output / formats::kVerifyName, "{}");
  write_bytes(conversion.output / "mine.json", "{}");
  conversion.execute.force = true;
  conversion.run();
  EXPECT_FALSE(fs::exists(conversion.output / formats::kVerifyName));
  EXPECT_TRUE(fs::exists(conversion.output / "mine.json"));
}

}  // namespace
}  // namespace ingot::verify
