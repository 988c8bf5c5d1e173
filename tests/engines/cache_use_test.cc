#include "engines/versions/cache_use.h"

#include "engines/versions/versions.h"
#include "tests/support/cache_cases.h"

namespace ingot::testing {
namespace {

using ::testing::HasSubstr;

/// The note about a case; "none" without one.
std::string note_of(std::string_view name, std::string_view engine) {
  const TempDir directory;
  cache_case(name).write(directory / "model");
  const auto note = engines::cache_note(formats::Checkpoint::open(directory / "model"),
                                        *engines::find_engine(engine));
  return note.value_or("none");
}

TEST(CacheUse, OfGroupedAttentionDependsOnTheConfig) {
  EXPECT_THAT(note_of("ct-tensor", "vllm"), HasSubstr("as the config says"));
  EXPECT_THAT(note_of("modelopt-fp8", "vllm"), HasSubstr("as the config says"));
  EXPECT_THAT(note_of("runtime-names", "vllm"), HasSubstr("--kv-cache-dtype fp8"));
}

TEST(CacheUse, OfLatentAttentionIsRare) {
  EXPECT_THAT(note_of("mla-modelopt", "vllm"), HasSubstr("uses the scale of keys"));
  EXPECT_THAT(note_of("mla-modelopt", "sglang"), HasSubstr("not in MTP layers"));
  for (const char* name : {"mla-plain", "mla-kv-a"}) {
    EXPECT_THAT(note_of(name, "vllm"), HasSubstr("it drops the scales")) << name;
  }
  EXPECT_THAT(note_of("mla-plain", "sglang"), HasSubstr("reads .k_proj.k_scale"));
}

TEST(CacheUse, PerHeadIsOneEngines) {
  EXPECT_THAT(note_of("ct-head", "vllm"), HasSubstr("it uses the scales"));
  EXPECT_THAT(note_of("ct-head", "sglang"), HasSubstr("refuses scales of the cache per head"));
}

TEST(CacheUse, OfFusedNamesAndOfSomeClassesIsNone) {
  EXPECT_THAT(note_of("fused-qkv", "sglang"), HasSubstr("fused projections"));
  EXPECT_THAT(note_of("modelopt-fp8", "sglang"), HasSubstr("issue 39942"));
  EXPECT_THAT(note_of("modelopt-fp8", "transformers"), HasSubstr("does not use"));
}

TEST(CacheUse, IsToldOnlyWhereScalesAreStored) {
  EXPECT_EQ(note_of("modelopt-cast", "vllm"), "none");
  EXPECT_EQ(note_of("ct-tensor", "trtllm"), "none");
}

}  // namespace
}  // namespace ingot::testing
