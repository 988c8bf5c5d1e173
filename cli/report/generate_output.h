#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/json/json_fwd.h"
#include "inference/generate/generate.h"
#include "inference/tokenizer/tokenizer.h"

namespace ingot::cli {

/// Prints answers to stdout as they come, in the order of their prompts: the first unfinished one
/// streams, the others wait. Text where there is a tokenizer and `as_ids` is false, else ids.
class AnswerPrinter {
 public:
  AnswerPrinter(std::size_t n_prompts, const inference::Tokenizer* tokenizer, bool as_ids,
                std::vector<std::int32_t> eos);
  void on_token(std::size_t prompt, std::int32_t token);
  /// Ends what has not ended.
  void finish();

 private:
  struct Stream {
    std::string waiting;
    bool ended = false, any = false;
    std::vector<inference::StreamDecoder> decoder;  ///< one, or none for ids
  };
  void flush();

  std::vector<Stream> streams_;
  std::vector<std::int32_t> eos_;
  std::size_t current_ = 0;
};

/// The document of --json.
formats::Json generate_json(const inference::GenerateResult& result,
                            const inference::Tokenizer* tokenizer, const inference::Model& model);

/// Speeds, time to the first token, peak memory, and what was read of experts, in one line.
std::string generate_summary(const inference::GenerateResult& result,
                             const inference::Model& model);

}  // namespace ingot::cli
