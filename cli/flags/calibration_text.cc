#include "cli/flags/calibration_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/figures.h"

namespace ingot::cli {
namespace {

// The first documents that hold so many tokens together, the last one cut.
void keep_tokens(std::size_t most, std::vector<verify::Prompt>& documents) {
  std::size_t n = 0;
  while (n < documents.size() && most > 0) {
    auto& ids = documents[n++].ids;
    ids.resize(std::min(ids.size(), most));
    most -= ids.size();
  }
  documents.resize(n);
}

}  // namespace

Flag text_flag(CalibrationText& text) {
  return {"--text",
          &text.path,
          "what to read: a .txt file as one document, JSON {\"docs\": [...]}, or JSON lines "
          "(.jsonl); - is stdin",
          {.is_required = true, .kind = ValueKind::kFile, .takes_stdin = true}};
}

Flag max_tokens_flag(CalibrationText& text) {
  return {"--max-tokens",
          &text.max_tokens,
          "stop after so many tokens (default: read all)",
          {.is_positive = true}};
}

std::vector<verify::Prompt> read_calibration_text(const CalibrationText& text,
                                                  const formats::Checkpoint& source) {
  const auto tokenizer = verify::open_tokenizer(source);
  if (!tokenizer) {
    throw Error(ErrorCode::kMissingTensor, "has no tokenizer.json, so that no text can be read")
        .in_file(source.directory().string());
  }
  std::size_t n_documents = 0;
  std::vector<verify::Prompt> windows =
      verify::read_documents(text.path, source, *tokenizer, &n_documents);
  if (windows.size() > n_documents) {
    notes() << fmt::format("note: {} document{} read in {} windows of the model's context\n",
                           count_text(n_documents), n_documents == 1 ? "" : "s",
                           count_text(windows.size()));
  }
  if (text.max_tokens > 0) keep_tokens(text.max_tokens, windows);
  return windows;
}

}  // namespace ingot::cli
