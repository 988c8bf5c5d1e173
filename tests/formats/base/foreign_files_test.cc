#include "formats/base/foreign_files.h"

#include "formats/checkpoint/checkpoint_listing.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::formats {
namespace {

using namespace ingot::testing;

TEST(Licence, IsKnownInAnyCaseAndFolder) {
  for (const char* licence : {"LICENSE", "LICENCE.txt", "license.md", "NOTICE", "Notice.txt",
                              "COPYING", "USE_POLICY.md", "LICENSE-MODEL", "original/LICENSE"}) {
    SCOPED_TRACE(licence);
    EXPECT_TRUE(is_licence(licence));
    EXPECT_EQ(left_out_reason(licence), "");
  }
  for (const char* other : {"README.md", "my_license.txt", "license.safetensors", "notice.gguf"}) {
    SCOPED_TRACE(other);
    EXPECT_FALSE(is_licence(other));
  }
}

TEST(Licence, BelongsToTheCheckpointInALeftOutFolder) {
  TempDir dir;
  tiny_deepseek_v3().write(dir.path());
  write_bytes(dir / "original/LICENSE", "licence");
  write_bytes(dir / "original/consolidated.00.pth", "weights");
  write_bytes(dir / "NOTICE", "notice");
  ErrorList faults;
  const SideListing listing = list_side_files(dir.path(), faults);
  std::vector<std::string> paths;
  for (const SideFile& file : listing.files) paths.push_back(file.path);
  EXPECT_THAT(paths, ::testing::ElementsAre("NOTICE", "original/LICENSE"));
  ASSERT_EQ(listing.left_out.size(), 1U);
  EXPECT_EQ(listing.left_out[0].path, "original/");
}

}  // namespace
}  // namespace ingot::formats
