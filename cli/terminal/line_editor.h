#pragma once

#include <optional>
#include <string>

namespace ingot::cli {

/// Lines from the user: with editing keys and history on a terminal, as they come otherwise.
class LineEditor {
 public:
  LineEditor();
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  /// The next line without its end; nullopt at the end of input. An interrupt gives an empty line.
  std::optional<std::string> read();

 private:
  struct Terminal;
  Terminal* terminal_ = nullptr;  ///< null without one
};

}  // namespace ingot::cli
