#pragma once

#include <cstdint>
#include <exception>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ingot {

/// The kind of fact that stopped the job. Tests assert these; messages may change, codes may not.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  ///< an option or recipe contradicts itself or matches nothing
  kNotFound,         ///< a file, tensor or key that should be there is not
  kPermission,       ///< the system refused access
  kNoSpace,          ///< the file system is, or would become, full
  kIo,               ///< any other failure of a read or write
  kCorrupt,          ///< bytes that violate their format
  kLimit,            ///< a number beyond the format or the memory budget
  kDuplicate,        ///< several things with one name
  kUnknownTensor,    ///< a name that the family's grammar does not have
  kMissingTensor,    ///< a tensor that the family, index or config promises
  kShapeMismatch,    ///< a shape that contradicts config, scale or partner
  kDtypeMismatch,    ///< a dtype that the encoding cannot have
  kBadScale,         ///< a scale that is zero, negative, infinite or NaN
  kNonFinite,        ///< a NaN or infinite value where none may be
  kUnsupported,      ///< legal input that this version cannot handle
  kExists,           ///< the target is in the way
  kMismatch,         ///< contents that differ from the promised ones (resume, check)
  kInterrupted,      ///< the user asked to stop
  kInternal,         ///< a bug of ours
};

/// The stable spelling of a code, e.g. "corrupt"; used by --json.
std::string_view error_code_name(ErrorCode code);

/// The one exception type. `message` names fact and remedy in lower case without a full stop; file,
/// tensor and byte are printed in front of it. All of it is shown escaped (base/printable.h).
class Error : public std::exception {
 public:
  Error(ErrorCode code, std::string message);
  /// Makes an error with the message that fmt makes of `format` and at least one argument.
  template <typename First, typename... Rest>
  Error(ErrorCode code, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Error(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}

  /// Adds context. The innermost value wins: a call on an error that already has one is ignored.
  Error& in_file(std::string_view file);
  Error& in_tensor(std::string_view tensor);
  Error& at_byte(std::uint64_t offset);
  /// Puts the directory before the file, or in place of a missing one, unless the file has it
  /// already.
  Error& in_directory(std::string_view directory);

  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }
  [[nodiscard]] const std::string& file() const noexcept { return file_; }
  [[nodiscard]] const std::string& tensor() const noexcept { return tensor_; }
  /// `file: tensor 'name': byte N: message`, with the parts that are known.
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  void rebuild();

  ErrorCode code_;
  std::string message_, file_, tensor_, text_;
  std::uint64_t byte_ = 0;
  bool has_byte_ = false;
};

/// An error from errno, as kNotFound, kPermission, kNoSpace or kIo; std::bad_alloc for ENOMEM.
Error system_error(int error_number, std::string_view what_failed, std::string_view file);

/// Collects independent faults so that a user sees all of them at once, in the order added, each
/// told once.
class ErrorList {
 public:
  void add(Error error) {
    if (told_.emplace(error.what()).second) errors_.push_back(std::move(error));
  }
  /// Adds a fault of a tensor, with the message that fmt makes of `format`.
  template <typename... Args>
  void add(ErrorCode code, std::string_view tensor, fmt::format_string<Args...> format,
           Args&&... args) {
    add(Error(code, fmt::format(format, std::forward<Args>(args)...)).in_tensor(tensor));
  }
  [[nodiscard]] bool empty() const { return errors_.empty(); }
  [[nodiscard]] const std::vector<Error>& errors() const { return errors_; }
  /// Throws one Error with the first code and every message, one per line (at most `shown`, then a
  /// count).
  void throw_if_any(std::size_t shown = 20) const;

 private:
  std::vector<Error> errors_;
  std::set<std::string, std::less<>> told_;
};

[[noreturn]] void check_failed(const char* expression, const char* file, int line);

/// Checks for our own bugs, never for input; on in release builds too.
#define INGOT_CHECK(expression) \
  ((expression) ? static_cast<void>(0) : ::ingot::check_failed(#expression, __FILE__, __LINE__))

}  // namespace ingot
