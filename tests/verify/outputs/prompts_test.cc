#include "verify/outputs/prompts.h"

#include "formats/json/json.h"
#include "inference/generate/prompt_text.h"
#include "tests/support/edited_weights.h"
#include "tests/support/test.h"
#include "tests/verify/layers/example.h"

namespace ingot::testing {
namespace {

using verify::Prompt;

std::filesystem::path write(const TempDir& directory, const char* name, const std::string& text) {
  std::ofstream(directory / name) << text;
  return directory / name;
}

TEST(BuiltInPrompts, BeginWithOneBosAndFitTheModel) {
  const Example example;
  ASSERT_GE(example.prompts.size(), 8U);
  std::size_t longest = 0;
  for (const Prompt& prompt : example.prompts) {
    EXPECT_EQ(prompt.ids.front(), 0) << prompt.text;
    EXPECT_EQ(std::count(prompt.ids.begin(), prompt.ids.end(), 0), 1) << prompt.text;
    longest = std::max(longest, prompt.ids.size());
  }
  EXPECT_GT(longest, 64U);  // of the example's index_topk: there the indexer chooses
}

// The golden prompt of this conversation.
TEST(BuiltInPrompts, PutQuestionsInTheFormatOfTheModel) {
  const Example example;
  EXPECT_EQ(example.prompts.at(2).text,
            "<｜begin▁of▁sentence｜><｜User｜>What is the capital of Norway?<｜Assistant｜>The "
            "capital of "
            "Norway is Oslo.<｜end▁of▁sentence｜><｜User｜>What is the opposite of "
            "hot?<｜Assistant｜>The opposite of hot is cold.<｜end▁of▁sentence｜><｜User｜>Spell "
            "the word "
            "lantern.<｜Assistant｜>");
}

TEST(BuiltInPrompts, AreTextWhereThereIsNoChatFormat) {
  const EditedCopy copy(INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint");
  std::filesystem::copy_file(tiny_v32() / "tokenizer.json", copy.path() / "tokenizer.json");
  const auto model = shard::open_source(copy.path());
  const auto tokenizer = verify::open_tokenizer(model);
  const auto prompts = verify::built_in_prompts(model, &tokenizer.value());
  EXPECT_EQ(prompts.size(), Example().prompts.size());
  EXPECT_EQ(prompts.at(3).text, "Question: What is the capital of Norway?\nAnswer:");
  EXPECT_EQ(prompts.at(3).ids, tokenizer->encode(prompts.at(3).text, true));
}

TEST(BuiltInPrompts, AreIdsWithoutATokenizer) {
  const auto model = shard::open_source(INGOT_SOURCE_DIR "/tests/golden/arch/qwen3_moe/checkpoint");
  EXPECT_FALSE(verify::open_tokenizer(model).has_value());
  const auto prompts = verify::built_in_prompts(model, nullptr);
  ASSERT_EQ(prompts.size(), 4U);
  for (const Prompt& prompt : prompts) {
    EXPECT_TRUE(prompt.text.empty());
    for (const std::int32_t id : prompt.ids) {
      EXPECT_GE(id, 0);
      EXPECT_LT(id, 512);
    }
  }
  EXPECT_NE(prompts[0].ids, prompts[1].ids);
  EXPECT_EQ(prompts[3].ids, verify::built_in_prompts(model, nullptr)[3].ids);
}

TEST(PromptLines, AreKnownByNameOrByTheFirstLine) {
  const auto has_lines = [](const char* path, const char* text) {
    return inference::has_prompt_lines(path, text);
  };
  EXPECT_TRUE(has_lines("a.jsonl", "no JSON"));
  EXPECT_FALSE(has_lines("a.txt", "\"text\"\n"));
  const char* input = "/dev/stdin";
  EXPECT_TRUE(has_lines(input, "\n \"text\"\nmore"));
  EXPECT_TRUE(has_lines(input, R"({"prompt": "a", "id": 1})"));
  EXPECT_TRUE(has_lines(input, R"({"messages": [{"role": "user", "content": "a"}]})"));
  for (const char* text :
       {"", "text", "\"Well\", she said.", "{", R"({"docs": ["a"]})", "[1]", "7"})
    EXPECT_FALSE(has_lines(input, text)) << text;
}

TEST(PromptLines, KeepTheIdOfAnyType) {
  const auto lines =
      inference::parse_prompt_lines("{\"id\": [1], \"text\": \"a\"}\n\"b\"\n", "prompts.jsonl");
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(*lines[0].id, formats::Json::parse("[1]"));
  EXPECT_EQ(lines[1].id, nullptr);
}

TEST(ReadPrompts, TakesTextsBetweenBlankLines) {
  const Example example;
  const TempDir directory;
  const auto path =
      write(directory, "p.txt", "\nOnce upon\r\na time\n\n  \n<｜begin▁of▁sentence｜>Hello");
  const auto prompts = verify::read_prompts(path, example.model, example.tokenizer);
  ASSERT_EQ(prompts.size(), 2U);
  EXPECT_EQ(prompts[0].text, "Once upon\na time");
  EXPECT_EQ(prompts[0].ids.front(), 0);
  EXPECT_EQ(std::count(prompts[1].ids.begin(), prompts[1].ids.end(), 0), 1);
  expect_error(ErrorCode::kInvalidArgument, {"p.txt", "no text"}, [&] {
    verify::read_prompts(write(directory, "p.txt", "\n \n"), example.model, example.tokenizer);
  });
}

using ReadDocuments = InTempDir;

TEST_F(ReadDocuments, TakesAListOrAWholeFile) {
  const Example example;
  const auto read = [&](const char* name, const std::string& text) {
    return verify::read_documents(write(dir_, name, text), example.model, example.tokenizer);
  };
  EXPECT_EQ(read("a.json", R"({"docs": ["One.", "Two."], "more": 1})").size(), 2U);
  const auto whole = read("a.txt", "One.\n\nTwo.\n");
  ASSERT_EQ(whole.size(), 1U);
  EXPECT_EQ(whole[0].text, "One.\n\nTwo.\n");
  EXPECT_EQ(whole[0].ids.front(), 0);
}

TEST_F(ReadDocuments, SplitsLongTextsIntoWindows) {
  const Example example;
  std::string text;
  for (int i = 0; text.size() < 20'000; ++i)
    text += "Once upon a time there were " + std::to_string(i) + " kites. ";
  std::size_t documents = 0;
  const auto windows = verify::read_documents(write(dir_, "a.txt", text), example.model,
                                              example.tokenizer, &documents);
  EXPECT_EQ(documents, 1U);
  ASSERT_GT(windows.size(), 2U);
  std::vector<std::int32_t> joined = {0};
  for (const auto& window : windows) {
    EXPECT_LE(window.ids.size(), 1024U);
    EXPECT_EQ(window.ids.front(), 0) << "BOS";
    joined.insert(joined.end(), window.ids.begin() + 1, window.ids.end());
  }
  EXPECT_EQ(joined, inference::encode_raw_text(example.tokenizer, 0, text));
  EXPECT_EQ(windows[0].ids.size(), 1024U);
  const auto two = verify::read_documents(
      write(dir_, "a.json", formats::Json({{"docs", {text, "One."}}}).dump()), example.model,
      example.tokenizer);
  ASSERT_EQ(two.size(), windows.size() + 1);
  EXPECT_EQ(two[1].document, 0U);
  EXPECT_EQ(two.back().document, 1U);
}

TEST_F(ReadDocuments, TakesJsonLines) {
  const Example example;
  const auto path =
      write(dir_, "a.jsonl",
            "{\"text\": \"One.\", \"id\": 7}\n\n\"Two.\"\r\n{\"prompt\": \"Three.\"}\n"
            "{\"messages\": [{\"role\": \"user\", \"content\": \"Four?\"}]}");
  const auto documents = verify::read_documents(path, example.model, example.tokenizer);
  ASSERT_EQ(documents.size(), 4U);
  EXPECT_EQ(documents[0].text, "One.");
  EXPECT_EQ(documents[1].text, "Two.");
  EXPECT_EQ(documents[2].text, "Three.");
  EXPECT_NE(documents[3].text.find("Four?"), std::string::npos);
  EXPECT_NE(documents[3].text, "Four?") << "in the chat format";
  EXPECT_EQ(verify::read_prompts(path, example.model, example.tokenizer).size(), 4U);
}

TEST_F(ReadDocuments, RefusesHostileJsonLinesWithTheirLine) {
  const Example example;
  const auto refuse = [&](ErrorCode code, const std::string& line) {
    SCOPED_TRACE(line);
    expect_error(code, {"a.jsonl: line 3: "}, [&] {
      verify::read_documents(write(dir_, "a.jsonl", "\"One.\"\n\n" + line + "\n\"x\""),
                             example.model, example.tokenizer);
    });
  };
  refuse(ErrorCode::kCorrupt, "not JSON");
  refuse(ErrorCode::kCorrupt, "{\"text\": \"a\"");
  refuse(ErrorCode::kCorrupt, "{\"text\": \"caf\xE9\"}");
  refuse(ErrorCode::kCorrupt, std::string("\"a\0\"", 4));
  refuse(ErrorCode::kCorrupt, std::string(100, '['));
  refuse(ErrorCode::kInvalidArgument, "7");
  refuse(ErrorCode::kInvalidArgument, "[\"a\"]");
  refuse(ErrorCode::kInvalidArgument, "{\"txt\": \"a\"}");
  refuse(ErrorCode::kInvalidArgument, "{\"text\": 7}");
  refuse(ErrorCode::kInvalidArgument, "{\"text\": \"\"}");
  refuse(ErrorCode::kInvalidArgument, "{\"text\": \"a\", \"prompt\": \"b\"}");
  refuse(ErrorCode::kInvalidArgument, "{\"messages\": []}");
  refuse(ErrorCode::kInvalidArgument,
         "{\"messages\": [{\"role\": \"pirate\", \"content\": \"a\"}]}");
  expect_error(ErrorCode::kInvalidArgument, {"empty.jsonl", "holds no text"}, [&] {
    verify::read_documents(write(dir_, "empty.jsonl", "\n \n"), example.model, example.tokenizer);
  });
}

TEST_F(ReadDocuments, RefusesWhatHoldsNone) {
  const Example example;
  const auto refuse = [&](ErrorCode code, const char* name, const std::string& text) {
    expect_error(code, {name}, [&] {
      verify::read_documents(write(dir_, name, text), example.model, example.tokenizer);
    });
  };
  refuse(ErrorCode::kInvalidArgument, "empty.txt", "");
  refuse(ErrorCode::kInvalidArgument, "latin1.txt", "caf\xE9");
  refuse(ErrorCode::kInvalidArgument, "a.json", R"({"docs": []})");
  refuse(ErrorCode::kInvalidArgument, "a.json", R"({"docs": ["a", ""]})");
  refuse(ErrorCode::kCorrupt, "a.json", R"(["a"])");
  refuse(ErrorCode::kCorrupt, "a.json", R"({"texts": ["a"]})");
  refuse(ErrorCode::kCorrupt, "a.json", R"({"docs": ["a", 3]})");
  refuse(ErrorCode::kCorrupt, "a.json", R"({"docs": "a"})");
  refuse(ErrorCode::kCorrupt, "a.json", "{");
}

}  // namespace
}  // namespace ingot::testing
