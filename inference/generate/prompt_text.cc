#include "inference/generate/prompt_text.h"

#include "formats/json.h"

namespace ingot::inference {
namespace {

using formats::Json;

constexpr std::uint64_t kMaxConfigBytes = std::uint64_t{64} << 20U;

}  // namespace

std::optional<std::int32_t> bos_before_text(const std::filesystem::path& directory,
                                            const Tokenizer& tokenizer) {
  const std::filesystem::path path = directory / "tokenizer_config.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  const Json config = formats::read_json_file(path, kMaxConfigBytes);
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
      current += (current.empty() ? "" : "\n") + std::string(line);
    }
  }
  finish();
  return prompts;
}

}  // namespace ingot::inference
