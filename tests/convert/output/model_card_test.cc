#include "convert/output/model_card.h"

#include "convert/output/planned_checkpoint.h"
#include "formats/json/json.h"
#include "formats/records/manifest.h"
#include "formats/yaml/yaml.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

namespace ingot::convert {
namespace {

namespace fs = std::filesystem;
using namespace ingot::testing;
using formats::SchemeId;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr const char* kReadme = "---\nlicense: mit\nlanguage: no\n---\n# Tiny\n\ntext";

class ModelCard : public ::testing::Test {
 protected:
  ModelCard() {
    fs::create_directories(source_.parent_path());
    copy_small(source_);
    write_bytes(source_ / "README.md", kReadme);
    write_bytes(source_ / "LICENSE", "licence");
  }

  // README.md of the output of a recipe.
  std::string converted(const Recipe& recipe, const PlanOptions& options = {}) {
    Conversion conversion(source_, dir_ / "out");
    conversion.recipe = recipe;
    conversion.plan = options;
    fs::remove_all(conversion.output);
    conversion.run();
    const fs::path rank = conversion.output / "rank-00000-of-00002";
    const fs::path home = fs::exists(rank) ? rank : conversion.output;
    return read_text_file(home / "README.md", 1 << 20);
  }

  static Recipe to(SchemeId scheme) {
    Recipe recipe;
    recipe.to = scheme;
    return recipe;
  }

  static PlanOptions for_two_ranks() {
    PlanOptions options;
    options.layout = formats::find_layout("ranks");
    options.slicing.topology.ep = 2;
    return options;
  }

  TempDir dir_;
  fs::path source_ = dir_ / "models--Org--Tiny/snapshots/0a1b";
};

// The front matter of a card.
formats::Yaml matter_of(const std::string& card) {
  EXPECT_THAT(card, StartsWith("---\n"));
  const std::size_t end = card.find("\n---\n", 4);
  EXPECT_NE(end, std::string::npos);
  return formats::parse_yaml(card.substr(4, end - 3), "README.md");
}

TEST_F(ModelCard, SaysWhatTheHubAsksFor) {
  const std::string card = converted(to(SchemeId::kInt8Channel));
  const formats::Yaml matter = matter_of(card);
  EXPECT_EQ(matter.find("base_model")->text(""), "Org/Tiny");
  EXPECT_EQ(matter.find("base_model_relation")->text(""), "quantized");
  EXPECT_EQ(matter.find("license")->text(""), "mit");
  EXPECT_EQ(matter.find("language")->text(""), "no");
  EXPECT_THAT(card, HasSubstr("language: \"no\"\n")) << "no boolean";
  EXPECT_EQ(matter.find("library_name")->text(""), "transformers");
  EXPECT_THAT(matter.find("tags")->texts(""), ElementsAre("int8", "compressed-tensors"));
}

TEST_F(ModelCard, TellsHowTheOutputWasMadeWithoutPaths) {
  Recipe recipe = to(SchemeId::kInt8Channel);
  recipe.rules.push_back(parse_rule("role:shared-experts & layers:1=bf16"));
  recipe.choices.quantize_attention = true;
  const std::string card = converted(recipe);
  EXPECT_THAT(
      card,
      HasSubstr(
          "ingot convert Org/Tiny OUT --to int8-channel --mtp convert --quantize-attention --rule "
          "'role:shared-experts & layers:1=bf16'\n"));
  EXPECT_THAT(card, HasSubstr("https://huggingface.co/Org/Tiny"));
  EXPECT_THAT(card, HasSubstr("| fp8-block | int8-channel |"));
  EXPECT_THAT(card, HasSubstr("vllm serve DIR"));
  EXPECT_THAT(card, Not(HasSubstr(dir_.path().string())));
  EXPECT_THAT(card, EndsWith("\n---\n\n# Tiny\n\ntext")) << "the source's own text as it is";
}

TEST_F(ModelCard, IsTheSameWithAndWithoutACut) {
  const std::string whole = converted(to(SchemeId::kBf16));
  EXPECT_EQ(converted(to(SchemeId::kBf16), for_two_ranks()), whole);
  EXPECT_THAT(matter_of(whole).find("tags")->texts(""), ElementsAre("bf16"));
}

TEST_F(ModelCard, NamesTheGatesThatItPassed) {
  Conversion conversion(source_, dir_ / "out");
  conversion.recipe = to(SchemeId::kInt8Channel);
  conversion.execute.gate = formats::Json{
      {"verify", "weights"}, {"thresholds", "/home/me/own"}, {"require", "weights.cosine>=0.999"}};
  const auto card = [&] {
    fs::remove_all(conversion.output);
    conversion.run();
    return read_text_file(conversion.output / "README.md", 1 << 20);
  };
  EXPECT_THAT(card(), Not(HasSubstr("--verify"))) << "nothing was inspected";
  conversion.execute.inspect = [](const fs::path&) { return Inspection{}; };
  EXPECT_THAT(card(), HasSubstr("\n--verify weights --thresholds FILE --require "
                                "'weights.cosine>=0.999'\n"));
}

TEST_F(ModelCard, LeavesTheFileOfACopyAlone) {
  EXPECT_EQ(converted(Recipe()), kReadme);
  EXPECT_EQ(converted(Recipe(), for_two_ranks()), kReadme);
}

TEST_F(ModelCard, IsInTheManifestOnceWithLicences) {
  converted(to(SchemeId::kBf16), for_two_ranks());
  for (const char* rank : {"rank-00000-of-00002", "rank-00001-of-00002"}) {
    SCOPED_TRACE(rank);
    const auto manifest = formats::read_manifest(dir_ / "out" / rank);
    ASSERT_TRUE(manifest);
    for (const char* name : {"README.md", "LICENSE"})
      EXPECT_EQ(std::ranges::count(manifest->side_files, name, &formats::ManifestFile::name), 1);
    EXPECT_EQ(read_text_file(dir_ / "out" / rank / "LICENSE", 100), "licence");
  }
}

TEST_F(ModelCard, IsMadeWithoutASourcesCard) {
  fs::remove(source_ / "README.md");
  const std::string card = converted(to(SchemeId::kBf16));
  EXPECT_EQ(matter_of(card).find("license"), nullptr);
  EXPECT_THAT(card, Not(HasSubstr("\n---\n\n#  ")));
}

TEST_F(ModelCard, FrontMatterHasNoCharacterThatYamlRefuses) {
  const std::string licence = "a\x7f\xc2\x9b\xe2\x80\xae\xe2\x80\xa8\xef\xbf\xbf\xf0\x9f\x98\x80z";
  write_bytes(source_ / "README.md",
              "---\nlicense: \"a\\x7f\\u009b\\u202e\\u2028\\uffff\\U0001f600z\"\n---\n");
  const std::string card = converted(to(SchemeId::kInt8Channel));
  EXPECT_THAT(card,
              HasSubstr("license: \"a\\u007f\\u009b\\u202e\\u2028\\uffff\xf0\x9f\x98\x80z\"\n"));
  EXPECT_EQ(matter_of(card).find("license")->text(""), licence);
}

TEST_F(ModelCard, TakesNoFolderNameThatIsNoCommit) {
  for (const char* name :
       {"qq\n# zz [c](javascript:x)", "qq zz", "qq`zz", "<qq>", "\xe2\x80\xae"}) {
    const fs::path odd = source_.parent_path() / name;
    fs::rename(source_, odd);
    source_ = odd;
    const std::string card = converted(to(SchemeId::kInt8Channel));
    EXPECT_THAT(card, HasSubstr("Made by ingot"));
    EXPECT_THAT(card, Not(HasSubstr(name)));
  }
}

TEST(RecipeCommand, QuotesWordsForAShell) {
  Recipe recipe;
  recipe.rules.push_back(parse_rule("re:a'b $(x)=bf16"));
  recipe.allow.add("zero-scale=*");
  EXPECT_EQ(recipe_command(recipe, "IN"),
            "ingot convert IN OUT --rule 're:a'\\''b $(x)=bf16' --allow 'zero-scale=*'");
}

}  // namespace
}  // namespace ingot::convert
