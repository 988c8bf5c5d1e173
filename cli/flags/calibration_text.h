#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "formats/checkpoint/checkpoint.h"
#include "library/options/flag_table.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {

/// Flags shared by the commands that count something while a model reads a text.
struct CalibrationFlags {
  std::string directory, text, family, mem_limit = "4GiB", progress = "auto";
  std::size_t max_tokens = 0;  ///< tokens of the text that are read; 0: all
  std::size_t threads = 0;     ///< 0: one for each processor
  /// The rest that a signal leaves, in words.
  std::string_view left = "nothing was written";
};

Flag text_flag(CalibrationFlags& flags);
Flag max_tokens_flag(CalibrationFlags& flags);
/// Adds the flags of the groups "source" and "job".
void add_source_and_job(FlagTable& table, CalibrationFlags& flags);

/// Opens the directory, with its remarks as notes.
formats::Checkpoint open_source(const CalibrationFlags& flags);

/// Calls `count` with the documents of --text, in windows of the model's context, and with options
/// that show `phase` as progress and stop at signals. Notes how many windows the documents take,
/// and how long it took. Throws kMissingTensor for a model without a tokenizer, and as
/// shard::require_all_ranks() does.
void read_text(const CalibrationFlags& flags, const formats::Checkpoint& source, const char* phase,
               const std::function<void(std::span<const verify::Prompt> documents,
                                        const verify::RunOptions& options)>& count);

}  // namespace ingot::cli
