#pragma once

#include <cstddef>
#include <filesystem>

#include "tests/check/editable_checkpoint.h"
#include "tests/convert/slicing/sliced.h"

namespace ingot::testing {

/// Writes a small model of 510 tokens, which 4 ranks do not divide.
inline std::filesystem::path write_odd_vocabulary(const std::filesystem::path& to) {
  EditableCheckpoint model = EditableCheckpoint::load(arch_fixture("qwen3_moe"));
  model.config["vocab_size"] = 510;
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    model.at(name).shape[0] = 510;
    model.at(name).bytes.resize(std::size_t{510} * 128 * 2);
  }
  std::filesystem::create_directories(to);
  model.write(to);
  return to;
}

}  // namespace ingot::testing
