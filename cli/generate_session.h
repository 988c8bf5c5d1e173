#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cli/generate_words.h"
#include "formats/checkpoint/checkpoint.h"
#include "inference/generate/generate.h"
#include "inference/generate/memory_plan.h"
#include "inference/model/model.h"
#include "inference/parallel/comm.h"

namespace ingot::cli {

/// A model opened as the words say, within their memory.
class GenerateSession {
 public:
  explicit GenerateSession(const GenerateWords& words);

  [[nodiscard]] const formats::Checkpoint& source() const { return source_; }
  /// What the files and the words say of sampling and stopping.
  [[nodiscard]] inference::GenerateOptions options() const;
  /// Reads the weights. Caches for answers up to `final_lengths` fit beside them, or kLimit.
  void open(std::span<const std::size_t> final_lengths);
  [[nodiscard]] const inference::Model& model() const { return *model_; }
  [[nodiscard]] const inference::ModelSpec& spec() const { return spec_; }

 private:
  const GenerateWords& words_;
  formats::Checkpoint source_;
  inference::ModelSpec spec_;
  inference::OneRank comm_;
  std::unique_ptr<inference::Model> model_;
};

}  // namespace ingot::cli
