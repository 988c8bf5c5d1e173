// jinja_cases.json holds every construct of the subset, one group per case, and the texts that
// Jinja2 itself rendered. The file says with which version and settings.

#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "formats/base/error.h"
#include "formats/json/json.h"
#include "inference/chat/jinja/builtins.h"
#include "inference/chat/jinja/template.h"

namespace ingot::inference::jinja {

using formats::Json;

namespace {

constexpr std::uint64_t kMaxBytes = 1U << 22U;

Json read_cases() {
  return formats::read_json_file(
      std::filesystem::path(INGOT_SOURCE_DIR) / "tests/inference/chat/jinja_cases.json", kMaxBytes);
}

TEST(JinjaCases, RenderAsJinja2) {
  const Json file = read_cases();
  ASSERT_GE(file.at("cases").size(), 200U);
  for (const Json& entry : file.at("cases")) {
    SCOPED_TRACE(entry.at("name").get<std::string>());
    try {
      const Template parsed = Template::parse(entry.at("template").get<std::string>(), "case");
      EXPECT_EQ(parsed.render(file.at("variables"), "2025-03-07T09:05:02"),
                entry.at("text").get<std::string>());
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

TEST(JinjaCases, UseEveryFilterTestAndMethod) {
  std::string all;
  const Json file = read_cases();
  for (const Json& entry : file.at("cases")) all += entry.at("template").get<std::string>() + "\n";
  const auto expect_used = [&](std::span<const Builtin> table, std::string_view before,
                               std::string_view behind) {
    for (const Builtin& row : table) {
      const std::string use = std::string(before).append(row.name).append(behind);
      EXPECT_NE(all.find(use), std::string::npos) << use;
    }
  };
  expect_used(text_filters(), "| ", "");
  expect_used(sequence_filters(), "| ", "");
  expect_used(text_methods(), ".", "(");
  expect_used(list_methods(), ".", "(");
  expect_used(mapping_methods(), ".", "(");
  expect_used(tests(), "", "");
}

TEST(JinjaCases, RenderTheSameTextEveryTime) {
  const Template parsed = Template::parse(
      "{% set l = [] %}{% for x in xs %}{% set _ = l.append(x) %}{% endfor %}{{ l }}", "case");
  const Json variables = {{"xs", {1, 2}}};
  EXPECT_EQ(parsed.render(variables), "[1, 2]");
  EXPECT_EQ(parsed.render(variables), "[1, 2]");
}

}  // namespace

// chat_template_cases.json: whole chat templates and conversations, and the texts that Jinja2
// itself rendered; the file says with which version and settings.

namespace {

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
