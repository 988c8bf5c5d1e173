#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/checkpoint/checkpoint.h"
#include "inference/base/profile.h"
#include "inference/parallel/comm.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::verify {

/// A text that both models are given, as token ids; `text` is empty where there is no tokenizer.
struct Prompt {
  std::string text;
  std::vector<std::int32_t> ids;
  std::size_t document = 0;  ///< index of the document that a window is from
};

/// How models are run over prompts, and with how much of the machine. Each level reads the members
/// that it needs.
struct RunOptions {
  std::size_t tokens = 20;  ///< tokens that an answer may have
  double gap = 1.0;  ///< `greedy.gap`: a source's top-2 gap above which a difference is a fault
  inference::Profile source_profile = inference::Profile::kF32;
  inference::Profile output_profile = inference::Profile::kNative;
  std::size_t threads = 1;
  std::uint64_t mem_limit = std::uint64_t{4} << 30;
  std::function<void(std::uint64_t, std::uint64_t)> progress = {};  ///< layers or tokens: done, all
  /// Ranks that run the output together, where this process has the directory of one of them; null:
  /// this process runs all of it.
  inference::Comm* ranks = nullptr;
  /// Numbers that the output's experts have in the source, by layer; null: the same.
  const std::map<std::uint32_t, std::vector<std::uint32_t>>* kept_experts = nullptr;
};

/// The built-in prompts: two stories to be continued and some questions, in English and Chinese,
/// some dozens of tokens each, BOS once. Questions are put in the model's own chat format where it
/// has one that can be rendered. All are of a kind that small models know as well: a model answers
/// unfamiliar questions at random, and every quantization differently. Without a tokenizer: fixed
/// pseudo-random ids of the model's vocabulary.
std::vector<Prompt> built_in_prompts(const formats::Checkpoint& source,
                                     const inference::Tokenizer* tokenizer);

/// Returns nullopt when the checkpoint has no tokenizer; throws as Tokenizer::open does.
std::optional<inference::Tokenizer> open_tokenizer(const formats::Checkpoint& source);

/// The functions below read files, pipes and the standard input (formats/text/text_input.h), where
/// the first line tells JSON lines from text.

/// Prompts of a text file, between blank lines, or of JSON lines (.jsonl, as
/// inference::parse_prompt_lines has them): texts encoded as they are, BOS once, conversations in
/// the model's chat format. kInvalidArgument when there is none, or it is not UTF-8.
std::vector<Prompt> read_prompts(const std::filesystem::path& path,
                                 const formats::Checkpoint& source,
                                 const inference::Tokenizer& tokenizer);

/// Documents of a text file: of .json `{"docs": ["...", ...]}`, of .jsonl one in each line, else
/// the whole file as one; `documents` gets their number. One that is longer than the model's
/// context becomes several windows of that length, each of which begins with BOS where the text
/// does: so every token of it is in one of them. kCorrupt for another JSON, kInvalidArgument for an
/// empty file.
std::vector<Prompt> read_documents(const std::filesystem::path& path,
                                   const formats::Checkpoint& source,
                                   const inference::Tokenizer& tokenizer,
                                   std::size_t* documents = nullptr);

}  // namespace ingot::verify
