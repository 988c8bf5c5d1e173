#pragma once

#include <filesystem>

#include "formats/base/fd.h"

namespace ingot::testing {

/// A tokenizer of one token, as far as a checkpoint needs one.
inline constexpr std::string_view kTinyTokenizer =
    R"({"model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}})";

inline void write_tokenizer(const std::filesystem::path& directory) {
  write_text_file(directory / "tokenizer.json", kTinyTokenizer);
}

}  // namespace ingot::testing
