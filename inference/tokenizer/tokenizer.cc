#include "inference/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <fmt/format.h>

#include "formats/base/error.h"
#include "formats/base/fd.h"
#include "formats/json/json.h"
#include "inference/tokenizer/added_tokens.h"
#include "inference/tokenizer/bpe.h"
#include "inference/tokenizer/characters.h"
#include "inference/tokenizer/component.h"
#include "inference/tokenizer/pre_tokenizer.h"
#include "inference/tokenizer/tiktoken.h"
#include "inference/tokenizer/unigram.h"

namespace ingot::inference {

using formats::Json;

namespace {

// Post-processors put the tokens around a text that mark its start and end. Types: BertProcessing,
// ByteLevel (which adds none), RobertaProcessing, TemplateProcessing (its `single`), and Sequence.

/// A part of a template: ids, or the text's own where there are none.
using TemplatePart = std::optional<std::vector<std::int32_t>>;
using TextTemplate = std::vector<TemplatePart>;

// Real templates have two or three parts of one id.
constexpr std::size_t kMaxTemplateParts = 64;
constexpr std::size_t kMaxIdsOfToken = 64;

std::vector<std::int32_t> ids_of(const Component& special_tokens, const std::string& name) {
  if (special_tokens.find(name.c_str()) == nullptr)
    special_tokens.refuse("has no token " + quote_text(name));
  const Component token(special_tokens.get(name.c_str()), "", special_tokens.path() + " token");
  const Json& list = token.array("ids");
  if (list.size() > kMaxIdsOfToken) token.refuse("ids", "are too many");
  std::vector<std::int32_t> ids;
  for (const Json& id : list) ids.push_back(token_id(id, token, name));
  return ids;
}

TextTemplate make_template(const Component& component) {
  const Json& single = component.array("single");
  if (single.size() > kMaxTemplateParts) component.refuse("single", "has too many parts");
  TextTemplate parts;
  bool has_text = false;
  for (std::size_t i = 0; i < single.size(); ++i) {
    const Component part(single[i], "", fmt::format("{}.single[{}]", component.path(), i));
    if (part.find("SpecialToken") != nullptr) {
      const std::string name = part.child("SpecialToken").text("id");
      parts.push_back(ids_of(component.child("special_tokens"), name));
      continue;
    }
    const std::string name = part.child("Sequence").text("id");
    if (name != "A")
      part.refuse(fmt::format("asks for text {}, but there is one, \"A\"", quote_text(name)));
    if (std::exchange(has_text, true)) part.unsupported("repeats the text, which is not supported");
    parts.push_back(std::nullopt);
  }
  if (!has_text) component.refuse("single", "is without the text");
  return parts;
}

std::vector<std::int32_t> marker(const Component& component, const char* key) {
  const Json& pair = component.array(key);
  if (pair.size() != 2 || !pair[0].is_string()) component.refuse(key, "is not a token and its id");
  return {token_id(pair[1], component, pair[0].get<std::string>())};
}

TextTemplate make_markers(const Component& component) {
  return {marker(component, "cls"), std::nullopt, marker(component, "sep")};
}

TextTemplate make_nothing(const Component& /*component*/) {
  return {std::nullopt};
}

constexpr std::array<ComponentRow<TextTemplate (*)(const Component&)>, 4> kTemplateRows{{
    {"BertProcessing", &make_markers},
    {"ByteLevel", &make_nothing},
    {"RobertaProcessing", &make_markers},
    {"TemplateProcessing", &make_template},
}};

std::vector<std::int32_t> post_processed(const std::vector<TextTemplate>& templates,
                                         std::vector<std::int32_t> ids) {
  for (const TextTemplate& parts : templates) {
    std::vector<std::int32_t> result;
    for (const TemplatePart& part : parts) {
      const auto& added = part ? *part : ids;
      result.insert(result.end(), added.begin(), added.end());
    }
    ids = std::move(result);
  }
  return ids;
}

constexpr const char* kFile = "tokenizer.json";
constexpr const char* kTiktokenFile = "tiktoken.model";
// The largest of well-known models have about 35 MB.
constexpr std::uint64_t kMaxFileBytes = std::uint64_t{256} << 20;

Component model_of(const Component& root) {
  Component model = root.child("model");
  // GPT-2's first files have no type; only BPE has merges.
  const std::string type = model.text("type", model.find("merges") != nullptr ? "BPE" : "(none)");
  if (type != "BPE" && type != "Unigram") {
    model.unsupported("has type " + quote_text(type) +
                      ", which is not supported (supported: BPE, Unigram)");
  }
  return model;
}

using TokenModel = std::variant<Bpe, Unigram>;

TokenModel parse_model(const Component& model, const Vocabulary& vocabulary) {
  if (model.text("type", "") == "Unigram") return Unigram::parse(model, vocabulary);
  return Bpe::parse(model, vocabulary);
}

void refuse_other_format(const std::filesystem::path& directory) {
  constexpr std::array<std::pair<const char*, const char*>, 2> kOtherFormats{
      {{"qwen.tiktoken", "tiktoken"}, {"tokenizer.model", "SentencePiece or tiktoken"}}};
  for (const auto& [name, format] : kOtherFormats) {
    if (!std::filesystem::exists(directory / name)) continue;
    throw Error(ErrorCode::kUnsupported,
                "a tokenizer in {} format is not supported (convert it to tokenizer.json; --tokens "
                "works without a tokenizer)",
                format)
        .in_file((directory / name).string());
  }
}

}  // namespace

// The model and the added tokens refer to the vocabulary, so this never moves.
struct Tokenizer::Parts {
  explicit Parts(const Component& root)
      : vocabulary(Vocabulary::parse(model_of(root))),
        model(parse_model(model_of(root), vocabulary)),
        normalizer(Normalizer::parse(root.find("normalizer"))),
        pre_tokenizer(PreTokenizer::parse(root.find("pre_tokenizer"))),
        post_processor(
            make_steps(kTemplateRows, root.find("post_processor"), "post_processor", "processors")),
        decoder(Decoder::parse(root.find("decoder"))),
        added_tokens(
            AddedTokens::parse(root.optional_array("added_tokens"), vocabulary, normalizer)) {
    // A caller that looks ids up in an embedding relies on size().
    for (const std::int32_t id : post_processed(post_processor, {})) {
      if (vocabulary.text(id) == nullptr && added_tokens.by_id(id) == nullptr)
        throw Error(ErrorCode::kCorrupt, "post_processor adds id {}, which no token has", id);
    }
  }

  Vocabulary vocabulary;
  TokenModel model;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  std::vector<TextTemplate> post_processor;
  Decoder decoder;
  AddedTokens added_tokens;
};

Tokenizer Tokenizer::parse(std::string_view json, std::string_view where) {
  try {
    const formats::Json document = formats::parse_json(json, where);
    return Tokenizer(std::make_shared<const Parts>(Component(document, "")));
  } catch (Error& error) {
    error.in_file(where);
    throw;
  }
}

bool Tokenizer::is_in(const std::filesystem::path& directory) {
  return std::filesystem::exists(directory / kFile) ||
         std::filesystem::exists(directory / kTiktokenFile);
}

Tokenizer Tokenizer::open(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kFile;
  if (!std::filesystem::exists(path)) {
    if (std::filesystem::exists(directory / kTiktokenFile)) return open_tiktoken(directory);
    refuse_other_format(directory);
    throw Error(ErrorCode::kNotFound,
                "there is no tokenizer (copy the model's tokenizer.json here; --tokens works "
                "without one)")
        .in_file(path.string());
  }
  return parse(read_text_file(path, kMaxFileBytes), path.string());
}

Tokenizer Tokenizer::open_tiktoken(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / kTiktokenFile;
  const Json config = formats::read_json_file(directory / "tokenizer_config.json", kMaxFileBytes);
  try {
    const Json document = tiktoken_document(read_text_file(path, kMaxFileBytes), config);
    return Tokenizer(std::make_shared<const Parts>(Component(document, "")));
  } catch (Error& error) {
    error.in_file(path.string());
    throw;
  }
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  TextWork work;
  work.give(text.size());
  if (const auto position = find_invalid_utf8(text)) {
    throw Error(ErrorCode::kInvalidArgument,
                "the text is not valid UTF-8 at byte {} (save or send it as UTF-8)", *position);
  }
  std::vector<std::int32_t> ids;
  BpeScratch model_scratch;
  const auto encode_pieces = [&](std::string_view stretch, bool is_start) {
    const SplitText split = parts_->pre_tokenizer.apply(std::string(stretch), is_start, work);
    for (const Span& piece : split.pieces) {
      const auto word = std::string_view(split.text).substr(piece.begin, piece.end - piece.begin);
      if (const auto* bpe = std::get_if<Bpe>(&parts_->model)) {
        bpe->encode(word, model_scratch, work, ids);
      } else {
        std::get<Unigram>(parts_->model).encode(word, work, ids);
      }
    }
  };
  for (const Stretch& raw : parts_->added_tokens.cut(text, AddedTokens::Round::kRaw, work)) {
    if (raw.id) {
      ids.push_back(*raw.id);
      continue;
    }
    const std::string normalized = parts_->normalizer.apply(std::string(raw.text), work);
    const bool is_start = raw.text.data() == text.data();
    for (const Stretch& stretch :
         parts_->added_tokens.cut(normalized, AddedTokens::Round::kNormalized, work)) {
      if (stretch.id) {
        ids.push_back(*stretch.id);
      } else {
        encode_pieces(stretch.text, is_start && stretch.text.data() == normalized.data());
      }
    }
  }
  return add_special_tokens ? post_processed(parts_->post_processor, std::move(ids)) : ids;
}

std::string Tokenizer::decode(std::span<const std::int32_t> ids, bool skip_special) const {
  StreamDecoder stream(*this, skip_special);
  std::string text;
  for (const std::int32_t id : ids) text += stream.push(id);
  return text + stream.finish();
}

std::optional<std::int32_t> Tokenizer::id_of(std::string_view token) const {
  if (const AddedToken* added = parts_->added_tokens.by_content(token)) return added->id;
  return parts_->vocabulary.find(token);
}

std::string_view Tokenizer::token(std::int32_t id) const {
  return decoded_token(id, false).value_or(std::string_view());
}

std::size_t Tokenizer::size() const {
  return std::max(parts_->vocabulary.size(), parts_->added_tokens.size());
}

std::optional<std::string_view> Tokenizer::decoded_token(std::int32_t id, bool skip_special) const {
  if (const AddedToken* added = parts_->added_tokens.by_id(id)) {
    if (skip_special && added->special) return std::nullopt;
    return added->content;
  }
  const std::string* text = parts_->vocabulary.text(id);
  return text != nullptr ? std::optional<std::string_view>(*text) : std::nullopt;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special), chain_(tokenizer.parts_->decoder) {}

std::string StreamDecoder::push(std::int32_t id) {
  const std::optional<std::string_view> token = tokenizer_->decoded_token(id, skip_special_);
  return token ? chain_.push(*token) : std::string();
}

std::string StreamDecoder::finish() {
  return chain_.finish();
}

}  // namespace ingot::inference
