#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "formats/checkpoint.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::verify {

/// A text that both models are given, as token ids; `text` is empty where there is no tokenizer.
struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
};

/// The built-in prompts: two stories to be continued and some questions, in English and Chinese,
/// some dozens of tokens each, BOS once. Questions are put in the model's own chat format where it
/// has one that can be rendered. All are of a kind that small models know as well: what a model has
/// never seen, it answers at random, and every quantization differently. Without a tokenizer: fixed
/// pseudo-random ids of the model's vocabulary.
std::vector<Prompt> built_in_prompts(const formats::Checkpoint& source,
                                     const inference::Tokenizer* tokenizer);

/// Nothing when the checkpoint has no tokenizer.json; throws what Tokenizer::open throws.
std::optional<inference::Tokenizer> open_tokenizer(const formats::Checkpoint& source);

/// Prompts of a text file, between blank lines, each encoded as it stands, BOS once.
/// kInvalidArgument when there is none, or it is not UTF-8.
std::vector<Prompt> read_prompts(const std::filesystem::path& path,
                                 const formats::Checkpoint& source,
                                 const inference::Tokenizer& tokenizer);

/// Documents of a text file: of .json `{"docs": ["...", ...]}`, else the whole file as one. Each
/// encoded by itself, BOS once, cut to the model's context (counted in `cut`).
/// kCorrupt for another JSON, kInvalidArgument for an empty file.
std::vector<Prompt> read_documents(const std::filesystem::path& path,
                                   const formats::Checkpoint& source,
                                   const inference::Tokenizer& tokenizer,
                                   std::size_t* cut = nullptr);

}  // namespace ingot::verify
