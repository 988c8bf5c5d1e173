#include "convert/recipe/source_card.h"

#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

using namespace ingot::testing;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// The card of a tiny model with this README.md, in a folder of this name.
SourceCard card_of(const std::string& readme, const std::string& folder = "model",
                   const std::string& config_entry = "") {
  TempDir dir;
  TinyCheckpoint tiny = tiny_deepseek_v3();
  if (!config_entry.empty()) tiny.config.insert(tiny.config.find('{') + 1, config_entry + ",");
  tiny.write(dir / folder);
  write_bytes(dir / folder / "README.md", readme);
  return read_source_card(formats::Checkpoint::open(dir / folder), {});
}

std::map<std::string, std::vector<std::string>> kept(const SourceCard& card) {
  std::map<std::string, std::vector<std::string>> entries;
  for (const CardEntry& entry : card.kept) entries[entry.key] = entry.values;
  return entries;
}

TEST(SourceCard, KeepsLicenceLanguageAndTask) {
  const SourceCard card = card_of(
      "---\nlicense: other\nlicense_name: tiny\nlicense_link: LICENSE\npipeline_tag: "
      "text-generation\nlanguage:\n- en\n- no\ntags: [fp8]\ndatasets: [x]\n---\n\n# Tiny\n");
  EXPECT_THAT(kept(card),
              ElementsAre(::testing::Pair("language", ElementsAre("en", "no")),
                          ::testing::Pair("license", ElementsAre("other")),
                          ::testing::Pair("license_link", ElementsAre("LICENSE")),
                          ::testing::Pair("license_name", ElementsAre("tiny")),
                          ::testing::Pair("pipeline_tag", ElementsAre("text-generation"))));
  EXPECT_EQ(card.text, "\n# Tiny\n");
  EXPECT_EQ(card.fault, "");
}

TEST(SourceCard, FindsFrontMatterAsTheHubDoes) {
  for (const char* matter :
       {"---\nlicense: mit\n---\n", "---\r\nlicense: mit\r\n---\r\n",
        "\n \n---\nlicense: mit\n---\n", "\xEF\xBB\xBF---\nlicense: mit\n---\n"}) {
    SCOPED_TRACE(matter);
    const SourceCard card = card_of(std::string(matter) + "text\n---\nmore\n");
    EXPECT_THAT(kept(card), ElementsAre(::testing::Pair("license", ElementsAre("mit"))));
    EXPECT_EQ(card.text, "text\n---\nmore\n");
  }
  EXPECT_EQ(card_of("---\nlicense: mit\n---").text, "");
  for (const char* none : {"# title\n---\nlicense: mit\n---\n", "---\nlicense: mit\n",
                           "----\na: b\n----\n", "", "---"}) {
    SCOPED_TRACE(none);
    const SourceCard card = card_of(none);
    EXPECT_THAT(kept(card), IsEmpty());
    EXPECT_EQ(card.text, none);
    EXPECT_EQ(card.fault, "");
  }
}

TEST(SourceCard, KeepsTheTextOfHostileFrontMatter) {
  const std::string deep = std::string(200, '[') + std::string(200, ']');
  for (const std::string& matter :
       {std::string("license: [mit"), std::string("a: &x [1]\nlicense: *x"),
        std::string("license: !!python/object x"), std::string("license: a\nlicense: b"),
        std::string("- license"), std::string("text"), "license: " + deep,
        "x: " + std::string(2 << 20, 'x')}) {
    SCOPED_TRACE(matter.substr(0, 40));
    const std::string readme = "---\n" + matter + "\n---\n# Tiny\n";
    const SourceCard card = card_of(readme);
    EXPECT_THAT(kept(card), IsEmpty());
    EXPECT_EQ(card.text, readme);
    EXPECT_NE(card.fault, "");
  }
}

TEST(SourceCard, PassesOverValuesOfAnotherKind) {
  const SourceCard card = card_of(
      "---\nlicense: {a: b}\nlanguage: [en, [fr]]\npipeline_tag:\nlibrary_name: \"a\\nb\"\n"
      "license_link: " +
      std::string(1000, 'x') + "\nbase_model: ../../etc\n---\ntext");
  EXPECT_THAT(kept(card), IsEmpty());
  EXPECT_THAT(card.base_models, IsEmpty());
  EXPECT_EQ(card.text, "text");
}

TEST(SourceCard, NamesTheSourceByItsPlaceInTheCache) {
  const SourceCard card = card_of("---\nbase_model: org/base\n---\n",
                                  "models--Org--Tiny/snapshots/0a1b", R"("_name_or_path": "a/b")");
  EXPECT_TRUE(card.is_named);
  EXPECT_THAT(card.base_models, ElementsAre("Org/Tiny"));
  EXPECT_EQ(card.relation, "quantized");
  EXPECT_EQ(card.commit, "0a1b");
}

TEST(SourceCard, ClaimsNoRelationThatIsNotKnown) {
  // A model that was tuned from its base is not that base in other numbers.
  SourceCard card = card_of("---\nbase_model: [org/base, org/other]\n---\n");
  EXPECT_THAT(card.base_models, ElementsAre("org/base", "org/other"));
  EXPECT_EQ(card.relation, "");
  card = card_of("---\nbase_model: org/base\nbase_model_relation: finetune\n---\n");
  EXPECT_EQ(card.relation, "");
  card = card_of("---\nbase_model: org/base\nbase_model_relation: quantized\n---\n");
  EXPECT_EQ(card.relation, "quantized");
  card = card_of("", "model", R"("_name_or_path": "org/loaded")");
  EXPECT_THAT(card.base_models, ElementsAre("org/loaded"));
  EXPECT_EQ(card.relation, "");
  card = card_of("", "model", R"("_name_or_path": "/data/model")");
  EXPECT_THAT(card.base_models, IsEmpty());
  EXPECT_FALSE(card.is_named);
}

TEST(SourceCard, LeavesVeryLongFilesAlone) {
  const SourceCard card = card_of(std::string(9 << 20, 'x'));
  EXPECT_TRUE(card.is_too_long);
  EXPECT_EQ(card.text, "");
}

}  // namespace
}  // namespace ingot::convert
