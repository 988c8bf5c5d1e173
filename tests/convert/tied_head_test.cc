#include "formats/config/nested_config.h"
#include "formats/json/json.h"
#include "tests/convert/conversion.h"
#include "tests/support/test.h"
#include "tests/support/tiny_checkpoint.h"

// tie_word_embeddings in a checkpoint that stores a head.

namespace ingot::testing {
namespace {

using formats::Json;

constexpr const char* kHead = "lm_head.weight";

class TiedHead : public ::testing::Test {
 protected:
  TiedHead() {
    Json config = formats::parse_json(tiny_.config, "config.json");
    config["tie_word_embeddings"] = true;
    tiny_.config = formats::json_text(config);
  }

  void make_apart() { tensor_of(tiny_, kHead).data = std::string(std::size_t{16} * 8 * 2, '\x3c'); }

  Conversion conversion() {
    tiny_.write(directory_ / "in");
    return {directory_ / "in", directory_ / "out"};
  }

  // config.json of the output.
  Json written(Conversion conversion) {
    conversion.run();
    return formats::read_json_file(directory_ / "out/config.json", 1 << 20);
  }

  TempDir directory_;
  TinyCheckpoint tiny_ = tiny_deepseek_v3();
};

TEST_F(TiedHead, ThatIsApartIsWrittenAsSuch) {
  make_apart();
  EXPECT_EQ(written(conversion()).at("tie_word_embeddings"), false);
}

TEST_F(TiedHead, OfEqualBytesStaysTied) {
  written(conversion());
  EXPECT_EQ(read_text_file(directory_ / "out/config.json", 1 << 20), tiny_.config);
}

TEST_F(TiedHead, ThatOnlyTheOutputHasApartIsToo) {
  Conversion otherwise = conversion();
  otherwise.recipe.rules.push_back(convert::parse_rule("lm_head.weight=f32"));
  EXPECT_EQ(written(otherwise).at("tie_word_embeddings"), false);
}

TEST_F(TiedHead, OfANestedModelIsUntiedWhereItStands) {
  make_apart();
  const Json text = formats::parse_json(tiny_.config, "config.json");
  for (TinyTensor& tensor : tiny_.files.begin()->second)
    tensor.name = "language_model." + tensor.name;
  tiny_.config = formats::json_text(
      {{"model_type", "kimi_k25"}, {"tie_word_embeddings", true}, {"text_config", text}});
  const Json config = written(conversion());
  EXPECT_EQ(config.at("tie_word_embeddings"), false);
  EXPECT_EQ(config.at("text_config").at("tie_word_embeddings"), false);
}

TEST_F(TiedHead, OutsideAnyGrammarIsKnownByItsName) {
  make_apart();
  Conversion unknown = conversion();
  unknown.family = "generic";
  EXPECT_EQ(written(unknown).at("tie_word_embeddings"), false);
}

// A run that resumes could not compare them any more.
TEST_F(TiedHead, ThatIsApartIsNotConsumed) {
  make_apart();
  Conversion consuming = conversion();
  consuming.execute.consume_source = true;
  expect_error(ErrorCode::kUnsupported, {"config.json", "tie_word_embeddings"},
               [&] { consuming.run(); });
  EXPECT_TRUE(std::filesystem::exists(directory_ / "in/model.safetensors"));
}

}  // namespace
}  // namespace ingot::testing
