#include "formats/base/error.h"

#include <array>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "formats/base/fault_lines.h"
#include "formats/base/printable.h"

namespace ingot {

std::string_view error_code_name(ErrorCode code) {
  static constexpr std::array kNames = {std::string_view("invalid-argument"),
                                        std::string_view("not-found"),
                                        std::string_view("permission"),
                                        std::string_view("no-space"),
                                        std::string_view("io"),
                                        std::string_view("corrupt"),
                                        std::string_view("limit"),
                                        std::string_view("duplicate"),
                                        std::string_view("unknown-tensor"),
                                        std::string_view("missing-tensor"),
                                        std::string_view("shape-mismatch"),
                                        std::string_view("dtype-mismatch"),
                                        std::string_view("bad-scale"),
                                        std::string_view("non-finite"),
                                        std::string_view("unsupported"),
                                        std::string_view("exists"),
                                        std::string_view("mismatch"),
                                        std::string_view("interrupted"),
                                        std::string_view("internal")};
  static_assert(kNames.size() == static_cast<std::size_t>(ErrorCode::kInternal) + 1);
  return kNames.at(static_cast<std::size_t>(code));
}

namespace {

// Messages quote file contents, which may be megabytes long.
constexpr std::size_t kMaxMessageBytes = 16'384;

std::string shortened(std::string message) {
  if (message.size() <= kMaxMessageBytes) return message;
  const std::size_t n_more = message.size() - kMaxMessageBytes;
  message.resize(kMaxMessageBytes);
  return message + fmt::format(" ... ({} bytes more)", n_more);
}

}  // namespace

Error::Error(ErrorCode code, std::string message)
    : code_(code), message_(printable_lines(shortened(std::move(message)))) {
  rebuild();
}

Error& Error::in_file(std::string_view file) {
  if (file_.empty()) file_ = file;
  rebuild();
  return *this;
}

Error& Error::in_tensor(std::string_view tensor) {
  if (tensor_.empty()) tensor_ = tensor;
  rebuild();
  return *this;
}

Error& Error::at_byte(std::uint64_t offset) {
  if (!has_byte_) byte_ = offset;
  has_byte_ = true;
  rebuild();
  return *this;
}

Error& Error::in_directory(std::string_view directory) {
  if (!file_.starts_with(directory) && !file_.starts_with('/'))
    file_ = fmt::format("{}{}{}", directory, file_.empty() ? "" : "/", file_);
  rebuild();
  return *this;
}

void Error::rebuild() {
  text_.clear();
  if (!file_.empty()) text_ += printable(file_) + ": ";
  if (!tensor_.empty()) text_ += "tensor '" + printable(tensor_) + "': ";
  if (has_byte_) text_ += fmt::format("byte {}: ", byte_);
  text_ += message_;
}

Error system_error(int error_number, std::string_view what_failed, std::string_view file) {
  ErrorCode code = ErrorCode::kIo;
  std::string_view remedy;
  switch (error_number) {
    case ENOMEM:
      // No fact about the file: a collector of faults must not take it for one.
      throw std::bad_alloc();
    case ENOENT:
      code = ErrorCode::kNotFound;
      break;
    case EACCES:
    case EPERM:
    case EROFS:
      code = ErrorCode::kPermission;
      break;
    case ENOSPC:
    case EDQUOT:
      code = ErrorCode::kNoSpace;
      remedy = " (free space and run again)";
      break;
    case EFBIG:
      remedy =
          " (raise the limit of the size of files, see ulimit -f, or write smaller ones; the file "
          "system may have such a limit too)";
      break;
    case EMFILE:
    case ENFILE:
      remedy = " (raise the limit of open files, see ulimit -n)";
      break;
    case ELOOP:
      remedy = " (a symbolic link points to itself)";
      break;
    default:
      break;
  }
  Error error(code, "cannot {}: {}{}", what_failed, std::strerror(error_number), remedy);
  error.in_file(file);
  return error;
}

namespace {

// The byte, if one is known, and the message.
std::string text_behind_names(const Error& error) {
  std::size_t n = 0;
  if (!error.file().empty()) n += printable(error.file()).size() + std::strlen(": ");
  if (!error.tensor().empty()) n += printable(error.tensor()).size() + std::strlen("tensor '': ");
  return std::string(error.what()).substr(n);
}

}  // namespace

void ErrorList::throw_if_any(std::size_t shown) const {
  if (errors_.empty()) return;
  if (errors_.size() == 1) throw errors_.front();
  std::vector<ListedFault> faults;
  for (const Error& error : errors_) {
    ListedFault& fault = faults.emplace_back();
    fault.file = error.file();
    fault.tensor = error.tensor();
    fault.message = text_behind_names(error);
  }
  const std::vector<std::string> lines = fault_lines(faults);
  std::string text = lines.size() == 1 ? lines.front() : fmt::format("{} faults", errors_.size());
  for (std::size_t i = 0; lines.size() > 1 && i < lines.size() && i < shown; ++i)
    text += "\n  " + lines[i];
  if (lines.size() > shown) text += fmt::format("\n  ... and {} lines more", lines.size() - shown);
  throw FaultList(errors_.front().code(), text, errors_);
}

void check_failed(const char* expression, const char* file, int line) {
  throw Error(ErrorCode::kInternal, "internal check failed: {} ({}:{}), please report this",
              expression, file, line);
}

}  // namespace ingot
