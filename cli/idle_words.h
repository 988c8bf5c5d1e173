#pragma once

#include <span>
#include <string_view>

namespace ingot::cli {

/// An option of the command line that may change nothing.
struct IdleWord {
  std::string_view option;
  bool is_given = false;
  bool acts = false;
  std::string_view belongs_to;
};

/// kInvalidArgument for the first that is given and does not act, naming what it belongs to.
void refuse_idle_words(std::span<const IdleWord> words);

}  // namespace ingot::cli
