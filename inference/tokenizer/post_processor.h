#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "inference/tokenizer/component.h"

namespace ingot::inference {

/// Puts the tokens around a text that mark its start and end. Types: BertProcessing, ByteLevel
/// (which adds none), RobertaProcessing, TemplateProcessing (its `single`), and Sequence.
class PostProcessor {
 public:
  /// `value` is the component of tokenizer.json, null for none.
  static PostProcessor parse(const formats::Json* value);

  [[nodiscard]] std::vector<std::int32_t> apply(std::vector<std::int32_t> ids) const;

  /// Every id that apply() may add.
  [[nodiscard]] std::vector<std::int32_t> ids() const;

  /// A part of a template: ids, or the text's own where there are none.
  struct Part {
    std::optional<std::vector<std::int32_t>> ids;
  };
  using Template = std::vector<Part>;

 private:
  std::vector<Template> templates_;
};

}  // namespace ingot::inference
