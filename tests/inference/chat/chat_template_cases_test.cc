#include <filesystem>
#include <string>

#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/template.h"

// chat_template_cases.json: whole chat templates and conversations, and the texts that Jinja2
// itself rendered; the file says with which version and settings.

namespace ingot::inference::jinja {
namespace {

using formats::Json;

constexpr std::uint64_t kMaxBytes = 1U << 22U;

std::string joined(const Json& lines) {
  std::string text;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) text += "\n";
    text += lines[i].get<std::string>();
  }
  return text;
}

TEST(ChatTemplateCases, RenderAsJinja2) {
  const Json file = formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/inference/chat/chat_template_cases.json",
      kMaxBytes);
  ASSERT_GE(file.at("cases").size(), 100U);
  std::size_t n_refused = 0;
  for (const Json& entry : file.at("cases")) {
    const auto name = entry.at("template").get<std::string>();
    const auto conversation = entry.at("conversation").get<std::string>();
    const auto i_options = entry.at("options").get<std::size_t>();
    SCOPED_TRACE(name + ", " + conversation + ", options " + std::to_string(i_options));
    Json variables = file.at("conversations").at(conversation);
    variables["documents"] = nullptr;
    variables["bos_token"] = "<s>";
    variables["eos_token"] = "</s>";
    for (const auto& [key, value] : file.at("options")[i_options].items()) variables[key] = value;
    const Template parsed = Template::parse(joined(file.at("templates").at(name)), name);
    try {
      const std::string text = parsed.render(variables, "2025-03-07T09:05:02");
      if (entry.at("text").is_null()) {
        ADD_FAILURE() << "Jinja2 refuses what gave " << text;
      } else {
        EXPECT_EQ(text, entry.at("text").get<std::string>());
      }
    } catch (const Error& error) {
      EXPECT_TRUE(entry.at("text").is_null()) << error.what();
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument) << error.what();
      ++n_refused;
    }
  }
  EXPECT_GT(n_refused, 0U);
}

}  // namespace
}  // namespace ingot::inference::jinja
