#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "cli/flags/flag_table.h"
#include "formats/checkpoint/checkpoint.h"
#include "verify/outputs/prompts.h"

namespace ingot::cli {

/// The text that a model reads while something in it is counted.
struct CalibrationText {
  std::string path;
  std::size_t max_tokens = 0;  ///< 0: all
};

Flag text_flag(CalibrationText& text);
Flag max_tokens_flag(CalibrationText& text);

/// The documents in windows of the model's context, as token ids. Notes how many windows they take.
/// Throws kMissingTensor for a model without a tokenizer.
std::vector<verify::Prompt> read_calibration_text(const CalibrationText& text,
                                                  const formats::Checkpoint& source);

}  // namespace ingot::cli
