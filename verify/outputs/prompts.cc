#include "verify/outputs/prompts.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/printable.h"
#include "formats/json/json.h"
#include "formats/text/text_input.h"
#include "inference/chat/chat_format.h"
#include "inference/family/model_family.h"
#include "inference/generate/prompt_text.h"

namespace ingot::verify {

using formats::Checkpoint;
using formats::Json;
using inference::Tokenizer;

namespace {

constexpr std::uint64_t kMaxTextBytes = std::uint64_t{64} << 20U;  // limit of a tokenizer's text

constexpr std::array<std::string_view, 2> kTexts = {
    // Longer than the choice of a small indexer.
    "Once upon a time there was a small fox named Lily. One day she found a red kite on the road. "
    "The sun was bright and warm. So Lily went to the river with the kite. On the way she got "
    "lost, and the kite became very heavy.\n\nLily sat down under a tree and felt tired. A turtle "
    "called Felix heard the noise and came to look. \"Why are you so tired?\" asked Felix. \"I "
    "know "
    "the way,\" said Felix. \"We can carry it together.\" They walked side by side",
    "There was once a curious owl, and his name was Tom. He had a yellow lantern that he loved "
    "very much. Snow covered the ground. So Tom went to the old barn with the lantern. But the "
    "lantern fell into a deep hole. Tom could not reach it, and he felt",
};

// Turns of conversations, the user's first and last.
struct Conversation {
  std::array<std::string_view, 5> turns;
  std::size_t n_turns = 1;
};
constexpr std::array kConversations = {
    Conversation{
        {"What is the capital of Norway?", "The capital of Norway is Oslo.",
         "What is the opposite of hot?", "The opposite of hot is cold.", "Spell the word lantern."},
        5},
    Conversation{{"What is the capital of Norway?"}},
    Conversation{{"中国的首都是哪里？"}},
    Conversation{{"“大”的反义词是什么？"}},
    Conversation{{"What is 23 + 45?"}},
    Conversation{{"What day comes after Tuesday?"}},
    Conversation{{"Write 61 in words."}},
};

// Templates that print a date get this one: the same prompts every day.
constexpr const char* kDate = "2025-01-01";

std::optional<std::string> in_chat_format(const Checkpoint& source, const Conversation& said) {
  try {
    const auto format = inference::open_chat_format(source.directory(), source.family().name, {});
    Json messages = Json::array();
    for (std::size_t i = 0; i < said.n_turns; ++i) {
      messages.push_back(
          {{"role", i % 2 == 0 ? "user" : "assistant"}, {"content", std::string(said.turns[i])}});
    }
    inference::ChatOptions options;
    options.date = kDate;
    return format->render(messages, nullptr, options);
  } catch (const Error&) {
    return std::nullopt;  // no template, or none that we can render: that is not verified here
  }
}

std::string as_text(const Conversation& said) {
  std::string text;
  for (std::size_t i = 0; i < said.n_turns; ++i) {
    text += fmt::format("{}: {}\n", i % 2 == 0 ? "Question" : "Answer", said.turns[i]);
  }
  return text + "Answer:";
}

void cut_to(const inference::ModelSpec& spec, Prompt& prompt) {
  if (spec.max_positions > 0 && prompt.ids.size() > spec.max_positions) {
    prompt.ids.resize(spec.max_positions);
  }
}

// splitmix64: ids that look drawn, and are the same everywhere.
std::uint64_t mixed(std::uint64_t n) {
  n = (n + 1) * 0x9E3779B97F4A7C15U;
  n = (n ^ (n >> 30U)) * 0xBF58476D1CE4E5B9U;
  n = (n ^ (n >> 27U)) * 0x94D049BB133111EBU;
  return n ^ (n >> 31U);
}

std::vector<Prompt> pseudo_random_prompts(const inference::ModelSpec& spec) {
  std::vector<Prompt> prompts;
  std::uint64_t drawn = 0;
  for (const std::size_t length : {20U, 33U, 48U, 72U}) {
    Prompt& prompt = prompts.emplace_back();
    for (std::size_t i = 0; i < length; ++i) {
      prompt.ids.push_back(static_cast<std::int32_t>(mixed(drawn++) % spec.vocab));
    }
    cut_to(spec, prompt);
  }
  return prompts;
}

// Input without a name is JSON if it begins so.
bool is_json(const std::filesystem::path& path, std::string_view text) {
  if (!is_nameless_input(path)) return path.extension() == ".json";
  const std::size_t start = text.find_first_not_of(" \t\r\n");
  return start != std::string_view::npos && text[start] == '{';
}

std::vector<std::string> texts_of(std::string text, const std::filesystem::path& path) {
  if (!is_json(path, text)) return {std::move(text)};
  const Json json = formats::parse_json(text, path.string());
  const auto docs = json.is_object() ? json.find("docs") : json.end();
  const bool is_list =
      json.is_object() && docs != json.end() && docs->is_array() &&
      std::all_of(docs->begin(), docs->end(), [](const Json& doc) { return doc.is_string(); });
  if (!is_list) {
    throw Error(ErrorCode::kCorrupt, "is not {\"docs\": [\"...\", ...]}").in_file(path.string());
  }
  return docs->get<std::vector<std::string>>();
}

// Plain texts, as lines that hold nothing else.
std::vector<inference::PromptLine> lines_of(const std::vector<std::string>& texts,
                                            const std::filesystem::path& path) {
  std::vector<inference::PromptLine> lines;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (texts[i].empty() || !is_utf8(texts[i])) {
      throw Error(ErrorCode::kInvalidArgument, "text {} is {}", i,
                  texts[i].empty() ? "empty" : "not valid UTF-8")
          .in_file(path.string());
    }
    lines.emplace_back().text = texts[i];
  }
  return lines;
}

// The lines of `path`: JSON lines, or the pieces of plain text by `split`.
template <typename Split>
std::vector<inference::PromptLine> read_lines(const std::filesystem::path& path,
                                              const Split& split) {
  std::string text = read_text_input(path, kMaxTextBytes);
  if (inference::has_prompt_lines(path, text))
    return inference::parse_prompt_lines(text, path.string());
  return lines_of(split(std::move(text)), path);
}

std::vector<Prompt> encode(const std::vector<inference::PromptLine>& lines,
                           const Checkpoint& source, const Tokenizer& tokenizer,
                           const std::filesystem::path& path) {
  if (lines.empty())
    throw Error(ErrorCode::kInvalidArgument, "holds no text").in_file(path.string());
  const auto bos = inference::bos_before_text(source.directory(), tokenizer);
  const bool has_chats = std::any_of(
      lines.begin(), lines.end(), [](const auto& line) { return line.said.messages != nullptr; });
  const auto format =
      has_chats ? inference::open_chat_format(source.directory(), source.family().name, {})
                : nullptr;
  inference::ChatOptions options;
  options.date = kDate;
  std::vector<Prompt> prompts;
  for (const inference::PromptLine& line : lines) {
    if (line.said.messages == nullptr) {
      prompts.push_back(
          {.text = line.text, .ids = inference::encode_raw_text(tokenizer, bos, line.text)});
      continue;
    }
    try {
      const std::string text = format->render(*line.said.messages, *line.said.tools, options);
      prompts.push_back({.text = text, .ids = tokenizer.encode(text, false)});
    } catch (const Error& error) {
      throw Error(error.code(), "line {}: {}", line.line, error.what()).in_file(path.string());
    }
  }
  return prompts;
}

// A document in pieces that fit the context. The tokens before every text are repeated, so that
// each token of the document is predicted, or seen, once.
void add_windows(const inference::ModelSpec& spec, std::span<const std::int32_t> around,
                 Prompt document, std::vector<Prompt>& windows) {
  const std::size_t most = spec.max_positions;
  if (most < 2 || document.ids.size() <= most) {
    windows.push_back(std::move(document));
    return;
  }
  const bool begins_alike = !around.empty() && document.ids.front() == around.front();
  std::size_t next = 0;
  while (next < document.ids.size()) {
    std::vector<std::int32_t> ids;
    if (begins_alike && next > 0) ids.push_back(around.front());
    const std::size_t n = std::min(most - ids.size(), document.ids.size() - next);
    const auto from = document.ids.begin() + static_cast<std::ptrdiff_t>(next);
    ids.insert(ids.end(), from, from + static_cast<std::ptrdiff_t>(n));
    next += n;
    windows.push_back({.text = next == n ? document.text : std::string(),
                       .ids = std::move(ids),
                       .document = document.document});
  }
}

}  // namespace

std::optional<Tokenizer> open_tokenizer(const Checkpoint& source) {
  if (!Tokenizer::is_in(source.directory())) return std::nullopt;
  return Tokenizer::open(source.directory());
}

std::vector<Prompt> built_in_prompts(const Checkpoint& source, const Tokenizer* tokenizer) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  if (tokenizer == nullptr) return pseudo_random_prompts(spec);
  const auto bos = inference::bos_before_text(source.directory(), *tokenizer);
  std::vector<Prompt> prompts;
  for (const std::string_view text : kTexts) {
    prompts.push_back(
        {.text = std::string(text), .ids = inference::encode_raw_text(*tokenizer, bos, text)});
  }
  for (const Conversation& said : kConversations) {
    if (const auto text = in_chat_format(source, said)) {
      prompts.push_back(
          {.text = *text, .ids = tokenizer->encode(*text, /*add_special_tokens=*/false)});
    } else {
      const std::string plain = as_text(said);
      prompts.push_back({.text = plain, .ids = inference::encode_raw_text(*tokenizer, bos, plain)});
    }
  }
  for (Prompt& prompt : prompts) cut_to(spec, prompt);
  return prompts;
}

std::vector<Prompt> read_prompts(const std::filesystem::path& path, const Checkpoint& source,
                                 const Tokenizer& tokenizer) {
  return encode(read_lines(path, inference::split_prompts), source, tokenizer, path);
}

std::vector<Prompt> read_documents(const std::filesystem::path& path, const Checkpoint& source,
                                   const Tokenizer& tokenizer, std::size_t* documents) {
  const inference::ModelSpec spec = inference::model_spec(source.family(), source.config());
  // The tokens before every text, whether the tokenizer puts them there or we do.
  const std::vector<std::int32_t> around = inference::encode_raw_text(
      tokenizer, inference::bos_before_text(source.directory(), tokenizer), "");
  const auto split = [&](std::string text) { return texts_of(std::move(text), path); };
  std::vector<Prompt> whole = encode(read_lines(path, split), source, tokenizer, path);
  if (documents != nullptr) *documents = whole.size();
  std::vector<Prompt> windows;
  for (std::size_t d = 0; d < whole.size(); ++d) {
    whole[d].document = d;
    add_windows(spec, around, std::move(whole[d]), windows);
  }
  return windows;
}

}  // namespace ingot::verify
