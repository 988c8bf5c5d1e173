#include "cli/idle_words.h"

#include <fmt/format.h>

#include "formats/base/error.h"

namespace ingot::cli {

void refuse_idle_words(std::span<const IdleWord> words) {
  for (const IdleWord& word : words) {
    if (!word.is_given || word.acts) continue;
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} has no effect here: it belongs to {}",
                                                         word.option, word.belongs_to));
  }
}

}  // namespace ingot::cli
