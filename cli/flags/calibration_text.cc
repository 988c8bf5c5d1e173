#include "cli/flags/calibration_text.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/terminal/answer.h"
#include "cli/terminal/progress.h"
#include "cli/terminal/terminal.h"
#include "formats/base/error.h"
#include "formats/base/parallel.h"
#include "formats/base/stop_scope.h"
#include "report/figures.h"
#include "shard/join/source.h"

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

std::vector<verify::Prompt> read_documents(const CalibrationFlags& flags,
                                           const formats::Checkpoint& source) {
  const auto tokenizer = verify::open_tokenizer(source);
  if (!tokenizer) {
    throw Error(ErrorCode::kMissingTensor, "has no tokenizer.json, so that no text can be read")
        .in_file(source.directory().string());
  }
  std::size_t n_documents = 0;
  std::vector<verify::Prompt> windows =
      verify::read_documents(flags.text, source, *tokenizer, &n_documents);
  if (windows.size() > n_documents) {
    notes() << fmt::format("note: {} document{} read in {} context windows\n",
                           count_text(n_documents), n_documents == 1 ? "" : "s",
                           count_text(windows.size()));
  }
  if (flags.max_tokens > 0) keep_tokens(flags.max_tokens, windows);
  return windows;
}

}  // namespace

Flag text_flag(CalibrationFlags& flags) {
  return {"--text",
          &flags.text,
          "text to read: a .txt file as one document, JSON {\"docs\": [...]}, or JSON lines "
          "(.jsonl); - is stdin",
          {.is_required = true, .kind = ValueKind::kFile, .takes_stdin = true}};
}

Flag max_tokens_flag(CalibrationFlags& flags) {
  return {"--max-tokens",
          &flags.max_tokens,
          "stop after so many tokens (default: read all)",
          {.is_positive = true}};
}

void add_source_and_job(FlagTable& table, CalibrationFlags& flags) {
  table.add(FlagGroup::kSource,
            {family_flag(&flags.family, "model family instead of config.json's"),
             family_file_flag(&flags.family)});
  table.add(FlagGroup::kJob, {mem_limit_flag(&flags.mem_limit), threads_flag(&flags.threads)});
}

formats::Checkpoint open_source(const CalibrationFlags& flags) {
  formats::Checkpoint source = shard::open_source(
      flags.directory, {.open = {.family = flags.family, .threads = threads_of(flags.threads)}});
  warn_of(flags.directory, source.remarks());
  return source;
}

void read_text(const CalibrationFlags& flags, const formats::Checkpoint& source, const char* phase,
               const std::function<void(std::span<const verify::Prompt> documents,
                                        const verify::RunOptions& options)>& count) {
  shard::require_all_ranks(source);
  const std::vector<verify::Prompt> documents = read_documents(flags, source);
  const std::string what = fmt::format("a text was read; {}", flags.left);
  const StopScope stop = stop_at_signals(what);
  const std::size_t threads = threads_of(flags.threads);
  Progress progress(flags.progress, phase, Progress::Unit::kSteps);
  count(documents,
        {.threads = threads,
         .mem_limit = memory_budget(flags.mem_limit),
         .progress = [&](std::uint64_t done, std::uint64_t all) { progress.update(done, all); }});
  progress.finish();
  notes() << progress.summary(threads);
}

}  // namespace ingot::cli
