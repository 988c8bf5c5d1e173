#include "inference/generate/prompt_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/checkpoint/checkpoint_listing.h"
#include "formats/json/json.h"
#include "formats/text/text_input.h"

namespace ingot::inference {

using formats::Json;

std::optional<std::int32_t> bos_before_text(const std::filesystem::path& directory,
                                            const Tokenizer& tokenizer) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json config = formats::read_json_file(path, formats::kMaxConfigBytes);
  const auto asked = config.find("add_bos_token"), token = config.find("bos_token");
  if (asked == config.end() || !asked->is_boolean() || !asked->get<bool>()) return std::nullopt;
  if (token == config.end()) return std::nullopt;
  if (token->is_string()) return tokenizer.id_of(token->get<std::string>());
  const auto content = token->find("content");
  return content != token->end() && content->is_string()
             ? tokenizer.id_of(content->get<std::string>())
             : std::nullopt;
}

std::vector<std::int32_t> encode_raw_text(const Tokenizer& tokenizer,
                                          std::optional<std::int32_t> bos, std::string_view text) {
  std::vector<std::int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/true);
  if (bos && (ids.empty() || ids.front() != *bos)) ids.insert(ids.begin(), *bos);
  return ids;
}

std::vector<std::string> split_prompts(std::string_view text) {
  std::vector<std::string> prompts;
  std::string current;
  const auto finish = [&] {
    if (!current.empty()) prompts.push_back(std::move(current));
    current.clear();
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text = end == std::string_view::npos ? std::string_view() : text.substr(end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") == std::string_view::npos) {
      finish();
    } else {
      if (!current.empty()) current += '\n';
      current += line;
    }
  }
  finish();
  return prompts;
}

namespace {

PromptLine parse_line(std::string_view text) {
  Json value = formats::parse_json(text, "");
  PromptLine entry;
  const auto refuse = [](const std::string& fact) {
    throw Error(ErrorCode::kInvalidArgument, fact);
  };
  const auto take = [&](Json& words) {
    if (!words.is_string() || words.get_ref<const std::string&>().empty())
      refuse("its text is empty, or no string");
    entry.text = std::move(words.get_ref<std::string&>());
  };
  if (value.is_string()) {
    take(value);
    return entry;
  }
  std::string_view kind;
  for (const std::string_view key : {"text", "prompt", "messages"}) {
    if (!value.is_object() || !value.contains(key)) continue;
    if (!kind.empty()) refuse(fmt::format("has both '{}' and '{}'", kind, key));
    kind = key;
  }
  if (kind.empty())
    refuse("is neither a string nor an object with \"text\", \"prompt\" or \"messages\"");
  if (value.contains("seconds") && value["seconds"].is_number())
    entry.seconds = value["seconds"].get<double>();
  if (value.contains("id")) entry.id = std::make_shared<const Json>(std::move(value["id"]));
  if (kind == "messages") {
    entry.said = {.messages = std::make_shared<const Json>(std::move(value["messages"])),
                  .tools = std::make_shared<const Json>(value.value("tools", Json()))};
    check_messages(*entry.said.messages, "");
    check_tools(*entry.said.tools, "");
  } else {
    take(value[std::string(kind)]);
  }
  return entry;
}

}  // namespace

std::vector<PromptLine> parse_prompt_lines(std::string_view text, std::string_view where) {
  std::vector<PromptLine> entries;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view here = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (here.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    try {
      entries.push_back(parse_line(here));
      entries.back().line = line;
    } catch (const Error& error) {
      throw Error(error.code(), "line {}: {}", line, error.what()).in_file(where);
    }
  }
  return entries;
}

std::vector<PromptLine> parse_arrivals(std::string_view text, std::string_view where) {
  std::vector<PromptLine> entries = parse_prompt_lines(text, where);
  double last = 0;
  for (const PromptLine& entry : entries) {
    constexpr double kMost = 1e9;
    if (!entry.seconds || !(*entry.seconds >= last && *entry.seconds <= kMost)) {
      throw Error(
          ErrorCode::kInvalidArgument,
          "line {}: an arrival has \"seconds\", a number from {} (of the line before, or 0) to 1e9",
          entry.line, last)
          .in_file(where);
    }
    last = *entry.seconds;
  }
  return entries;
}

bool has_prompt_lines(const std::filesystem::path& path, std::string_view text) {
  if (!is_nameless_input(path)) return path.extension() == ".jsonl";
  const std::size_t start = std::min(text.find_first_not_of(" \t\r\n"), text.size());
  const std::string_view line = text.substr(start, text.find('\n', start) - start);
  if (!line.starts_with('{') && !line.starts_with('"')) return false;
  try {
    parse_line(line);
    return true;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace ingot::inference
