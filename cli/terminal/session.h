#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "library/answer.h"

namespace ingot::convert {
class GivenTensors;
}

namespace ingot::cli {

/// A run of a command, and where it tells of itself. The process of the program is one, with the
/// standard streams and signals; each call of the shared library is another, which has neither.
struct Session {
  Answer answer;
  bool is_of_program = true;
  bool is_quiet = false;
  /// A line of the user at the terminal; nullopt at the end of input. Null: there is no user.
  std::function<std::optional<std::string>()> read_line = {};

  // For a call of the library.
  std::function<void(std::string_view phase, std::uint64_t done, std::uint64_t total)> progress =
      {};
  std::function<bool()> stop_requested = {};
  convert::GivenTensors* given = nullptr;  ///< tensors that the caller gives
  std::optional<Error> refusal = {};       ///< the reason why a job has published nothing
};

/// The session of this thread: that of its SessionScope, else the process's.
Session& session();

/// Makes a session that of this thread for as long as it lives.
class SessionScope {
 public:
  explicit SessionScope(Session& of);
  ~SessionScope();
  SessionScope(const SessionScope&) = delete;
  SessionScope& operator=(const SessionScope&) = delete;

 private:
  Session* before_;
};

}  // namespace ingot::cli
