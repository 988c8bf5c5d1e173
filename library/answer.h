#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/base/error.h"
#include "formats/json/json_fwd.h"

namespace ingot {

/// The document of --json, or of a call of the shared library. Commands add their results as they
/// have them; it is complete when they have ended, however they ended. Not for several threads:
/// only the first of several ranks answers.
class Answer {
 public:
  std::string command;   ///< the first word that is no option
  bool is_json = false;  ///< --json: the result is this document, and no text
  /// Another process of the launch answers: print nothing.
  bool is_of_other = false;

  /// Puts keys into the document, in place of those that are there; the faults of its lists
  /// `errors` and `warnings` (check::fault_json) behind those that are there. `summary` counts them
  /// where the lists are cut.
  void add(formats::Json keys);
  /// The command ends with this error.
  void end_by(const Error& error);

  /// The keys of all commands first: the form of docs/schema/.
  [[nodiscard]] formats::Json document() const;

 private:
  formats::JsonValue keys_ = {}, error_ = {};
  struct Faults {
    std::vector<formats::JsonValue> listed;
    std::uint64_t n = 0;

    void add(formats::Json fault);
  };
  Faults errors_, warnings_;
};

}  // namespace ingot
